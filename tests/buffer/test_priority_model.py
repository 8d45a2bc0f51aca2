"""Prioritized buffers against plain lists: tree and storage never disagree. `test_stress` does the same under many threads."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    TensorDictReplayBuffer,
)
from tests.buffer.priority_invariants import assert_priorities_are_consistent

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
