"""Any history of calls against the simplest buffer there is: Python lists."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replay_service import (
    CompressedListStorage,
    EmptyBufferError,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    RoundRobinWriter,
)

STORAGES = {
    "compressed": CompressedListStorage,
    "lazy": LazyTensorStorage,
    "list": ListStorage,
    "memmap": LazyMemmapStorage,
}


class RingModel(RuleBasedStateMachine):
    """A record is one number, and every number is written once."""

    @initialize(capacity=st.integers(1, 7), storage=st.sampled_from(sorted(STORAGES)))
    def start(self, capacity: int, storage: str) -> None:
        self.kind = STORAGES[storage]
        self.capacity = capacity
        self.buffer = self.made(0)
        self.slots: list[int] = []  # what each filled slot holds
        self.stamps = [-1] * capacity
        self.cursor = self.write_count = self.next_number = 0
        self.saved: Any = None

    def made(self, seed: int) -> ReplayBuffer:
        return ReplayBuffer(
            storage=self.kind(self.capacity),
            writer=RoundRobinWriter(track_generations=True),
            generator=torch.Generator().manual_seed(seed),
        )

    def write(self, number: int) -> int:
        slot = self.cursor
        if slot == len(self.slots):
            self.slots.append(number)
        else:
            self.slots[slot] = number
        self.stamps[slot] += 1
        self.cursor = (slot + 1) % self.capacity
        self.write_count += 1
        return slot

    def numbers(self, count: int) -> list[int]:
        self.next_number += count
        return list(range(self.next_number - count, self.next_number))

    @rule(count=st.integers(0, 17))
    def extend(self, count: int) -> None:
        numbers = self.numbers(count)
        got = self.buffer.extend(torch.tensor(numbers, dtype=torch.int64))
        assert got.tolist() == [self.write(number) for number in numbers]

    @rule()
    def add(self) -> None:
        (number,) = self.numbers(1)
        assert self.buffer.add(torch.tensor(number)) == self.write(number)

    @rule(size=st.integers(1, 9))
    def sample(self, size: int) -> None:
        if not self.slots:
            with pytest.raises(EmptyBufferError):
                self.buffer.sample(size)
            return
        data, info = self.buffer.sample(size, return_info=True)
        index = info["index"].tolist()
        assert len(index) == size
        assert data.tolist() == [self.slots[slot] for slot in index]
        assert info["index_generation"].tolist() == [self.stamps[slot] for slot in index]

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def set(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.integers(-len(self.slots), len(self.slots) - 1), min_size=1, max_size=5))
        numbers = self.numbers(len(chosen))
        self.buffer[chosen] = torch.tensor(numbers)
        for slot, number in zip(chosen, numbers, strict=True):
            self.slots[slot] = number

    @rule(beyond=st.integers(0, 3))
    def refuse(self, beyond: int) -> None:
        outside = len(self.slots) + beyond
        with pytest.raises(IndexError):
            self.buffer[outside]
        if self.slots:
            with pytest.raises(IndexError):
                self.buffer[[0, outside]] = torch.tensor([-1, -1])

    @rule(empty_write_count=st.booleans())
    def empty(self, empty_write_count: bool) -> None:
        self.buffer.empty(empty_write_count)
        self.slots, self.cursor = [], 0
        self.stamps = [stamp if stamp == -1 else stamp + 1 for stamp in self.stamps]
        self.write_count = 0 if empty_write_count else self.write_count

    @rule()
    def save(self) -> None:
        model = (list(self.slots), list(self.stamps), self.cursor, self.write_count)
        self.saved = (self.buffer.state_dict(), model)

    @precondition(lambda self: self.saved)
    @rule(into_new=st.booleans(), seed=st.integers(0, 3))
    def load(self, into_new: bool, seed: int) -> None:
        state, (slots, stamps, cursor, write_count) = self.saved
        if into_new:
            self.buffer.storage.release()
            self.buffer = self.made(seed)
        self.buffer.load_state_dict(state)
        self.slots, self.stamps, self.cursor, self.write_count = list(slots), list(stamps), cursor, write_count

    def teardown(self) -> None:
        self.buffer.storage.release()  # files

    @invariant()
    def agrees(self) -> None:
        assert len(self.buffer) == len(self.slots)
        assert self.buffer.write_count == self.write_count
        assert self.buffer.writer.generations_of(torch.arange(self.capacity)).tolist() == self.stamps
        if self.slots:
            assert self.buffer[:].tolist() == self.slots


RingModel.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestRingModel = RingModel.TestCase
