"""Random histories of episodic buffers, against plain lists."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from replay_service.episodic import (
    Batch,
    CachedReplayBuffer,
    PrioritizedVectorReplayBuffer,
    ReplayBuffer,
    VectorReplayBuffer,
)
from tests.episodic.ring_model import ModelRings
from tests.episodic.steps import rows

MACHINE = settings(max_examples=25, stateful_step_count=25, deadline=None)


class Histories(RuleBasedStateMachine):
    """Adds, ends, resets and reloads; after each of them everything that can be read is compared."""

    @initialize(
        number=st.integers(1, 3), capacity=st.integers(1, 5), stack=st.integers(1, 3), prioritized=st.booleans()
    )
    def start(self, number: int, capacity: int, stack: int, prioritized: bool) -> None:
        self.model = ModelRings(number, capacity)
        self.stack = stack
        self.count = 0
        if prioritized:
            self.buffer: Any = PrioritizedVectorReplayBuffer(
                number * capacity, number, alpha=0.5, beta=0.5, stack_num=stack
            )
        else:
            self.buffer = VectorReplayBuffer(number * capacity, number, stack_num=stack)

    @rule(steps=st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=9))
    def add(self, steps: list[tuple[int, bool]]) -> None:
        ids = [lane % len(self.model.rings) for lane, _ in steps]
        numbers = list(range(self.count + 1, self.count + 1 + len(steps)))
        self.count += len(steps)
        told = self.buffer.add(rows(numbers, [end for _, end in steps]), ids)
        expected = [self.model.rings[i].add(n, e) for i, n, (_, e) in zip(ids, numbers, steps, strict=True)]
        assert [list(row) for row in zip(*(column.tolist() for column in told), strict=True)] == expected

    @rule(lane=st.integers(0, 2))
    def end(self, lane: int) -> None:
        lane %= len(self.model.rings)
        self.buffer.end_episodes([lane])
        self.model.rings[lane].end()

    @rule(keep=st.booleans())
    def reset(self, keep: bool) -> None:
        self.buffer.reset(keep)
        for ring in self.model.rings:
            ring.reset(keep)

    @rule()
    def reload(self) -> None:
        self.buffer = pickle.loads(pickle.dumps(self.buffer))

    @rule(wrong=st.sampled_from(["ring", "shape", "entry"]))
    def fail(self, wrong: str) -> None:
        if self.count == 0:
            return
        step = rows([0])
        if wrong == "shape":
            step.obs = np.zeros((1, 2))
        if wrong == "entry":
            del step["act"]
        try:
            self.buffer.add(step, [7 if wrong == "ring" else 0])
        except (IndexError, ValueError):
            return
        raise AssertionError("was not refused")

    @invariant()
    def everything_agrees(self) -> None:
        model, buffer = self.model, self.buffer
        order = model.order
        assert len(buffer) == len(order)
        assert buffer.sample_indices(0).tolist() == order
        assert buffer.last_index.tolist() == model.newest
        if buffer.write_count:  # else there is no answer (E34)
            assert sorted(buffer.unfinished_index().tolist()) == sorted(model.unfinished)
        if hasattr(buffer, "update_weight"):
            assert np.flatnonzero(buffer.weight).tolist() == sorted(order)
        if not order:
            return
        assert buffer.prev(order).tolist() == [model.follow(slot, -1) for slot in order]
        assert buffer.next(order).tolist() == [model.follow(slot, 1) for slot in order]
        batch, numbers = buffer[:], [model.number_at(slot) for slot in order]
        assert batch.act.tolist() == numbers
        assert batch.done.tolist() == [model.ring_of(slot).steps[model.ring_of(slot).place(slot)][2] for slot in order]
        frames = [[model.number_at(model.follow(slot, back)) for back in range(1 - self.stack, 1)] for slot in order]
        assert batch.obs.reshape(len(order), -1).tolist() == frames
        assert (batch.obs_next == batch.obs + 1).all()
        assert set(buffer.sample_indices(20).tolist()) <= set(order)


Histories.TestCase.settings = MACHINE
TestHistories = Histories.TestCase


@settings(max_examples=60, deadline=None)
@given(
    main=st.integers(0, 6),
    length=st.integers(1, 4),
    steps=st.lists(st.tuples(st.integers(0, 1), st.booleans()), max_size=30),
)
def test_cached_histories(main: int, length: int, steps: list[tuple[int, bool]]) -> None:
    buffer = CachedReplayBuffer(ReplayBuffer(main), 2, length)
    caches: list[list[int]] = [[], []]
    stored: list[int] = []
    for number, (lane, end) in enumerate(steps):
        buffer.add(rows([number], [end]), [lane])
        caches[lane] = [*caches[lane], number][-length:]
        if end:
            stored = [*stored, *caches[lane]][-main:] if main else []
            caches[lane] = []
    if steps:
        assert buffer.get(buffer.sample_indices(0), "obs").tolist() == [*stored, *caches[0], *caches[1]]


@settings(max_examples=60, deadline=None)
@given(
    target=st.lists(st.booleans(), max_size=8),
    source=st.lists(st.booleans(), min_size=1, max_size=8),
    size=st.integers(1, 10),
)
def test_update_is_as_if_the_steps_had_been_added(target: list[bool], source: list[bool], size: int) -> None:
    moved, added, other = ReplayBuffer(size), ReplayBuffer(size), ReplayBuffer(5)
    for number, end in enumerate(target):
        for buffer in (moved, added):
            buffer.add(_step(number, end))
    for number, end in enumerate(source):
        other.add(_step(100 + number, end))
    slots = moved.update(other)
    for number, end in list(enumerate(source))[-5:]:
        added.add(_step(100 + number, end))
    order = moved.sample_indices(0)
    assert order.tolist() == added.sample_indices(0).tolist()
    assert moved[:].obs.tolist() == added[:].obs.tolist()
    assert moved.next(order).tolist() == added.next(order).tolist()
    assert moved.prev(order).tolist() == added.prev(order).tolist()
    assert slots.size == min(5, len(source))


def _step(number: int, end: bool) -> Batch:
    return Batch(obs=number, act=number, rew=number, done=end)
