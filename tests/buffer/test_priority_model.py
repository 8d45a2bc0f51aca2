"""Prioritized buffers against plain lists, and under many threads: tree and storage never disagree."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from tests.buffer.priority_invariants import assert_priorities_are_consistent
from tests.rows import assert_rows_are_whole, stamped_rows

CAPACITY = 16


class Model:
    """A ring of (value, priority) in a plain list."""

    def __init__(self, within_buffer: bool) -> None:
        self.within_buffer = within_buffer
        self.empty()

    def empty(self) -> None:
        self.slots: list[tuple[int, float]] = []
        self.cursor = 0
        self.largest = 0.0

    def extend(self, values: list[int], priorities: list[float] | None) -> None:
        places = [(self.cursor + i) % CAPACITY for i in range(len(values))]
        kept = {place for place in places if place < len(self.slots)}
        live = [priority for place, (_, priority) in enumerate(self.slots) if place not in kept]
        default = (max(live, default=0.0) if self.within_buffer else self.largest) or 1.0
        for i, (place, value) in enumerate(zip(places, values, strict=True)):
            record = (value, default if priorities is None else priorities[i])
            if place == len(self.slots):
                self.slots.append(record)
            else:
                self.slots[place] = record
        self.cursor = (self.cursor + len(values)) % CAPACITY
        if priorities is not None:
            self.saw(priorities)

    def update(self, places: list[int], priorities: list[float]) -> None:
        for place, priority in zip(places, priorities, strict=True):
            self.slots[place] = (self.slots[place][0], priority)
        self.saw(priorities)

    def saw(self, priorities: list[float]) -> None:
        self.largest = max([*priorities, self.largest])


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
@pytest.mark.parametrize("within_buffer", [False, True])
def test_like_a_list_of_records(storage: Any, within_buffer: bool) -> None:
    choose = random.Random(int(within_buffer))

    def make() -> TensorDictReplayBuffer:
        sampler = PrioritizedSampler(CAPACITY, 0.5, 1.0, eps=0.0, max_priority_within_buffer=within_buffer)
        return TensorDictReplayBuffer(storage=storage(CAPACITY), sampler=sampler, batch_size=8)

    buffer, model, stamp = make(), Model(within_buffer), 0
    for _ in range(250):
        action = choose.choice(["extend", "extend", "carry", "update", "update", "sample", "empty", "load"])
        count = choose.randint(1, 6)
        priorities = [choose.choice([0.0, 0.25, 1.0, 9.0, 400.0]) for _ in range(count)]
        if action in ("extend", "carry"):
            values = list(range(stamp, stamp + count))
            rows = TensorDict({"x": torch.tensor(values), "td_error": torch.tensor(priorities)}, [count])
            buffer.extend(rows, update_priority=action == "carry")
            model.extend(values, priorities if action == "carry" else None)
            stamp += count
        elif action == "update" and model.slots:
            places = [choose.randrange(len(model.slots)) for _ in range(count)]
            buffer.update_priority(places, priorities)
            model.update(places, priorities)
        elif action == "sample" and any(priority for _, priority in model.slots):
            batch = buffer.sample()
            positive = min(priority for _, priority in model.slots if priority)
            for value, place, weight in zip(
                *(batch[k].tolist() for k in ("x", "index", "priority_weight")), strict=True
            ):
                assert model.slots[place][0] == value
                assert weight == pytest.approx((positive / model.slots[place][1]) ** 0.5, rel=1e-5)
        elif action == "empty" and choose.random() < 0.3:
            buffer.empty()
            model.empty()
        elif action == "load":
            other = make()
            other.load_state_dict(buffer.state_dict())
            buffer = other
        assert buffer.sampler.priorities().tolist() == [priority for _, priority in model.slots]
        assert buffer.can_sample() == any(priority for _, priority in model.slots)
    assert_priorities_are_consistent(buffer)


def test_threads_that_write_draw_and_update() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(256),
        sampler=PrioritizedSampler(256, 0.6, 0.4, max_priority_within_buffer=True),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        batch_size=32,
    )
    buffer.extend(stamped_rows(256))
    rounds = 150

    def write(who: int) -> None:
        for turn in range(rounds):
            buffer.extend(stamped_rows(1 + (7 * turn + who) % 40, 100_000 * (who + 1) + 100 * turn))

    def draw() -> None:
        for _ in range(rounds):
            batch = buffer.sample()
            assert_rows_are_whole(batch)
            assert 0.0 < float(batch["priority_weight"].min()) <= float(batch["priority_weight"].max()) <= 1.0

    def update() -> None:
        for turn in range(rounds):
            batch = buffer.sample()
            new = 10.0 ** (turn % 9 - 4) * torch.ones(32)
            buffer.update_priority(batch["index"], new, generation=batch["index_generation"])

    def patch() -> None:
        for _ in range(rounds):
            batch = buffer.sample()
            rows = {"observation": batch["observation"]}
            buffer.update_if_present(index=batch["index"], generation=batch["index_generation"], patch=rows)

    _run(lambda: write(0), lambda: write(1), draw, draw, update, patch)
    assert_priorities_are_consistent(buffer)


def _run(*work: Callable[[], Any]) -> None:
    """All of it at once; the first error of any thread is raised here."""
    errors: list[BaseException] = []

    def guarded(call: Callable[[], Any]) -> None:
        try:
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]
