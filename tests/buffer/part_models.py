"""The simplest models of writers and samplers: plain lists, no cleverness; and which parts go together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict

from replay_service import (
    CompressedListStorage,
    ConsumingSampler,
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    PromptGroupSampler,
    RandomSampler,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    StalenessAwareSampler,
    StreamingSliceSampler,
    TensorDictMaxValueWriter,
    TensorDictRoundRobinWriter,
    TensorStorage,
)

MOST_SLOTS = 7
DRAWS_PER_RECORD = 2
REJECTED = -1


def rows_of(numbers: list[int]) -> TensorDict:
    """One record per number; what it says follows from the number, so that a torn record shows."""
    number = torch.tensor(numbers, dtype=torch.int64)
    return TensorDict(
        {
            "number": number,
            "rank": rank_of(number).to(torch.float32),
            "query": number % 3,
            "policy_version": torch.zeros_like(number),
            "patched": torch.zeros_like(number),
            "next": TensorDict({"done": (number % 4 == 3)[:, None]}, [len(numbers)]),
        },
        [len(numbers)],
    )


def rank_of(number: Any) -> Any:
    """A rank with many ties, in no order."""
    return (number * 7) % 5


def _tensor_storage(capacity: int) -> TensorStorage:
    storage = TensorStorage(rows_of([0] * capacity))
    storage.empty()
    return storage


STORAGES: dict[str, Callable[[int], Any]] = {
    "lazy": LazyTensorStorage,
    "memmap": LazyMemmapStorage,
    "tensor": _tensor_storage,
    "list": ListStorage,
    "stack": LazyStackStorage,
    "compressed": CompressedListStorage,
}
COLUMNAR = frozenset({"lazy", "memmap", "tensor"})

WRITERS: dict[str, Callable[[], Any]] = {
    "ring": partial(RoundRobinWriter, track_generations=True),
    "tensordict ring": partial(TensorDictRoundRobinWriter, track_generations=True),
    "best": partial(TensorDictMaxValueWriter, "rank", track_generations=True),
}

SAMPLERS: dict[str, Callable[[], Any]] = {
    "random": RandomSampler,
    "without replacement": SamplerWithoutReplacement,
    "prioritized": partial(PrioritizedSampler, MOST_SLOTS, alpha=0.7, beta=0.5, eps=0.0),
    "consuming": partial(ConsumingSampler, DRAWS_PER_RECORD),
    "staleness": StalenessAwareSampler,
    "groups": partial(PromptGroupSampler, samples_per_group=1),
    "slices": partial(SliceSampler, slice_len=2, strict_length=False),
    "slices without replacement": partial(SliceSamplerWithoutReplacement, slice_len=2, strict_length=False),
    "prioritized slices": partial(
        PrioritizedSliceSampler, MOST_SLOTS, alpha=0.7, beta=0.5, eps=0.0, slice_len=2, strict_length=False
    ),
    "streaming slices": partial(StreamingSliceSampler, slice_len=2, strict_length=False),
}
SLICES = frozenset(name for name in SAMPLERS if "slices" in name)


def why_not(writer: str, sampler: str) -> str | None:
    """What the refusal of parts that do not go together says; None if they do. Every storage goes with every legal pair."""
    if writer == "best" and sampler in SLICES:
        return "must write steps in the order"
    if writer == "best" and sampler == "consuming":
        return "must be able to write to freed slots"
    return None


class RingModel:
    """Around the ring."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.cursor = 0

    def place(self, slots: list[int], numbers: list[int]) -> list[int]:
        """The slot of each of `numbers`, written into `slots` one after the other."""
        placed = []
        for number in numbers:
            slots[self.cursor : self.cursor + 1] = [number]
            placed.append(self.cursor)
            self.cursor = (self.cursor + 1) % self.capacity
        return placed

    def empty(self) -> None:
        self.cursor = 0


class BestModel:
    """Sorts everything that is stored or offered, the first ones first among equals."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity

    def place(self, slots: list[int], numbers: list[int]) -> list[int]:
        """The slot of each of `numbers`, or -1."""
        worst_first = sorted(range(len(slots)), key=lambda slot: (rank_of(slots[slot]), slot))
        free = list(range(len(slots), self.capacity))
        staying = []
        for place in sorted(range(len(numbers)), key=lambda place: -rank_of(numbers[place])):
            if free:
                staying.append((place, free.pop(0)))
            elif worst_first and rank_of(numbers[place]) > rank_of(slots[worst_first[0]]):
                staying.append((place, worst_first.pop(0)))
        placed = [REJECTED] * len(numbers)
        taken = [slot for _, slot in staying]
        for place, slot in zip(sorted(place for place, _ in staying), taken, strict=True):
            placed[place] = slot
            slots[slot : slot + 1] = [numbers[place]]
        return placed

    def empty(self) -> None:
        pass
