"""Any history of calls, for every storage, writer and sampler that go together, against plain lists."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from replay_service import EmptyBufferError, PriorityError, TensorDictReplayBuffer
from tests.buffer.part_models import (
    COLUMNAR,
    DRAWS_PER_RECORD,
    MOST_SLOTS,
    REJECTED,
    SAMPLERS,
    SLICES,
    STORAGES,
    WRITERS,
    BestModel,
    RingModel,
    rows_of,
    why_not,
)

pytestmark = pytest.mark.filterwarnings("ignore:.* are missing for a whole batch:UserWarning")


class PartsMachine(RuleBasedStateMachine):
    """A record says one number, and every number is written once; what the buffer holds is `slots`."""

    def __init__(self, sampler: str) -> None:
        super().__init__()
        self.sampler = sampler

    @initialize(capacity=st.integers(1, MOST_SLOTS), data=st.data())
    def start(self, capacity: int, data: st.DataObject) -> None:
        self.storage = data.draw(st.sampled_from(sorted(STORAGES)))
        legal = [name for name in sorted(WRITERS) if why_not(name, self.sampler) is None]
        self.writer = data.draw(st.sampled_from(legal))
        self.capacity = capacity
        self.slots: list[int] = []  # the number in each filled slot
        self.patched: dict[int, int] = {}  # by number
        self.stamps = [-1] * capacity
        self.place: RingModel | BestModel = (BestModel if self.writer == "best" else RingModel)(capacity)
        self.unlikely: set[int] = set()  # slots of priority zero
        self.draws: dict[int, int] = {}  # by slot, of a sampler that uses records up
        self.write_count = self.next_number = 0
        self.held: Any = None  # an earlier sample: slots and stamps
        self.saved: Any = None
        self.buffer = self.made()

    def made(self) -> TensorDictReplayBuffer:
        return TensorDictReplayBuffer(
            storage=STORAGES[self.storage](self.capacity),
            writer=WRITERS[self.writer](),
            sampler=SAMPLERS[self.sampler](),
            generator=torch.Generator().manual_seed(self.next_number if hasattr(self, "next_number") else 0),
        )

    @property
    def consumes(self) -> bool:
        return self.sampler == "consuming"

    @property
    def live(self) -> list[int]:
        """The slots that can be drawn."""
        return [s for s in range(len(self.slots)) if self.draws.get(s, 0) < DRAWS_PER_RECORD]

    def numbers(self, count: int) -> list[int]:
        self.next_number += count
        return list(range(self.next_number - count, self.next_number))

    def wrote(self, got: list[int], numbers: list[int]) -> None:
        if self.consumes:
            self.wrote_into_freed(got, numbers)
        else:
            assert got == self.place.place(self.slots, numbers)
        for slot in got:
            if slot != REJECTED:
                self.stamps[slot] += 1
                self.write_count += 1
                self.unlikely.discard(slot)
                self.draws[slot] = 0

    def wrote_into_freed(self, got: list[int], numbers: list[int]) -> None:
        """Which slot is for the sampler's tests to say; here nothing that can be drawn is lost as long as there is room."""
        room = self.capacity - len(self.live)
        if len(got) <= room:
            assert len(set(got)) == len(got)
            assert not set(got) & set(self.live)
        for slot, number in sorted(zip(got, numbers, strict=True)):
            assert slot <= len(self.slots)
            self.slots[slot : slot + 1] = [number]

    @rule(count=st.integers(0, 2 * MOST_SLOTS + 3))
    def extend(self, count: int) -> None:
        numbers = self.numbers(count)
        self.wrote(self.buffer.extend(rows_of(numbers)).tolist(), numbers)

    @rule()
    def add(self) -> None:
        numbers = self.numbers(1)
        self.wrote([self.buffer.add(rows_of(numbers)[0])], numbers)  # type: ignore[list-item]

    @rule(size=st.integers(1, 5))
    def sample(self, size: int) -> None:
        size *= 2  # slices have two steps
        if not self.live:
            with pytest.raises(EmptyBufferError):
                self.buffer.sample(size)
            return
        if "prioritized" in self.sampler and self.unlikely >= set(range(len(self.slots))):
            with pytest.raises(PriorityError):
                self.buffer.sample(size)
            return
        data = self.buffer.sample(size)
        index = data["index"].tolist()
        assert 1 <= len(index) <= size
        assert data["number"].tolist() == [self.slots[slot] for slot in index]
        assert data["index_generation"].tolist() == [self.stamps[slot] for slot in index]
        assert data["patched"].tolist() == [self.patched.get(self.slots[slot], 0) for slot in index]
        self.held = (index, data["index_generation"].tolist())
        self.check_draw(data, index, size)

    def check_draw(self, data: Any, index: list[int], size: int) -> None:
        if self.sampler in {"random", "prioritized", "groups", "staleness"}:
            assert len(index) == size
        if self.sampler == "prioritized":
            assert not set(index) & self.unlikely
            assert bool(((data["priority_weight"] > 0) & (data["priority_weight"] <= 1)).all())
        if self.sampler == "without replacement":
            assert len(set(index)) == len(index)
        if self.sampler in SLICES:
            ends = data["next", "truncated"].flatten().tolist()
            for before, after, is_end in zip(index, index[1:], ends, strict=False):
                assert is_end or after == (before + 1) % self.capacity
        if self.consumes:
            assert len(index) == len(set(index)) == min(size, len(self.live))
            assert set(index) <= set(self.live)
            for slot in index:
                self.draws[slot] = self.draws.get(slot, 0) + 1

    @precondition(lambda self: self.held is not None)
    @rule(priority=st.sampled_from([0.0, 0.5, 3.0]))
    def update_priority(self, priority: float) -> None:
        index, stamps = self.held
        result = self.buffer.update_priority(
            torch.tensor(index), torch.full((len(index),), priority), generation=torch.tensor(stamps)
        )
        alive = [self.stamps[slot] == stamp for slot, stamp in zip(index, stamps, strict=True)]
        keeps = "prioritized" in self.sampler
        assert result.updated.tolist() == [keeps and is_alive for is_alive in alive]
        for slot, is_alive in zip(index, alive, strict=True):
            if is_alive:
                (self.unlikely.add if priority == 0 else self.unlikely.discard)(slot)

    @precondition(lambda self: self.held is not None)
    @rule(value=st.integers(1, 100))
    def update_if_present(self, value: int) -> None:
        index, stamps = self.held
        call = partial(
            self.buffer.update_if_present,
            index=torch.tensor(index),
            generation=torch.tensor(stamps),
            patch={"patched": torch.full((len(index),), value)},
        )
        if self.storage not in COLUMNAR:
            with pytest.raises(TypeError, match="columnar"):
                call()
            return
        alive = [self.stamps[slot] == stamp for slot, stamp in zip(index, stamps, strict=True)]
        assert call().updated.tolist() == alive
        for slot, is_alive in zip(index, alive, strict=True):
            if is_alive:
                self.patched[self.slots[slot]] = value
                self.unlikely.discard(slot)

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def set(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.integers(-len(self.slots), len(self.slots) - 1), min_size=1, max_size=4))
        numbers = self.numbers(len(chosen))
        self.buffer[chosen] = rows_of(numbers)
        for slot, number in zip(chosen, numbers, strict=True):
            self.slots[slot] = number
            self.unlikely.discard(slot % len(self.slots))

    @rule(count=st.integers(1, 3))
    def refuse(self, count: int) -> None:
        bad = rows_of([-1] * count)
        bad["rank"][-1] = float("nan")
        for rows in [bad] if self.writer == "best" else []:
            with pytest.raises(ValueError, match="rank"):
                self.buffer.extend(rows)
        with pytest.raises(IndexError):
            self.buffer[[0, len(self.slots)]]

    @rule(empty_write_count=st.booleans())
    def empty(self, empty_write_count: bool) -> None:
        self.buffer.empty(empty_write_count)
        self.slots, self.unlikely, self.draws = [], set(), {}
        self.place.empty()
        self.stamps = [stamp if stamp == -1 else stamp + 1 for stamp in self.stamps]
        self.write_count = 0 if empty_write_count else self.write_count

    @rule()
    def save(self) -> None:
        model = (self.slots, self.patched, self.stamps, self.place, self.unlikely, self.draws, self.write_count)
        self.saved = (self.buffer.state_dict(), copy.deepcopy(model))

    @precondition(lambda self: self.saved)
    @rule(into_new=st.booleans())
    def load(self, into_new: bool) -> None:
        state, model = self.saved
        if into_new:
            self.buffer.storage.release()
            self.buffer = self.made()
        self.buffer.load_state_dict(state)
        self.slots, self.patched, self.stamps, self.place, self.unlikely, self.draws, self.write_count = copy.deepcopy(
            model
        )
        self.held = None  # a state from before makes old handles live again: nothing can be said of them

    @invariant()
    def agrees(self) -> None:
        buffer = self.buffer
        assert len(buffer) == len(self.live)
        assert buffer.write_count == self.write_count
        assert buffer.writer.generations_of(torch.arange(self.capacity)).tolist() == self.stamps
        if self.slots:
            everything = buffer[:]
            assert everything["number"].tolist() == self.slots
            assert everything["patched"].tolist() == [self.patched.get(number, 0) for number in self.slots]
            assert torch.equal(everything["rank"], rows_of(self.slots)["rank"])

    def teardown(self) -> None:
        self.buffer.storage.release()  # files


@pytest.mark.parametrize("sampler", sorted(SAMPLERS))
def test_any_history(sampler: str) -> None:
    run_state_machine_as_test(
        partial(PartsMachine, sampler),
        settings=settings(max_examples=40, stateful_step_count=25, deadline=None),
    )


@pytest.mark.parametrize("storage", sorted(STORAGES))
@pytest.mark.parametrize("writer", sorted(WRITERS))
@pytest.mark.parametrize("sampler", sorted(SAMPLERS))
def test_parts_go_together_or_say_why_not(storage: str, writer: str, sampler: str) -> None:
    def make() -> TensorDictReplayBuffer:
        return TensorDictReplayBuffer(
            storage=STORAGES[storage](4), writer=WRITERS[writer](), sampler=SAMPLERS[sampler](), batch_size=2
        )

    reason = why_not(writer, sampler)
    if reason is not None:
        with pytest.raises((ValueError, TypeError), match=reason):
            make()
        return
    buffer = make()
    buffer.extend(rows_of(list(range(6))))
    assert set(buffer.sample()["number"].tolist()) <= set(buffer[:]["number"].tolist())
