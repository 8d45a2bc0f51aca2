"""Batches that are divided between two storages in a fixed proportion."""

from __future__ import annotations

import math
from typing import Any

from replay_service.buffer.samplers.base import Sampler
from replay_service.buffer.samplers.ensemble import SamplerEnsemble
from replay_service.buffer.storages.ensemble import StorageEnsemble
from replay_service.errors import EmptyBufferError

__all__ = ["SplitSampler"]


class SplitSampler(SamplerEnsemble):
    """Takes `round(fraction * batch_size)` records of every batch from the first of two storages, and the others from the second.

    A storage that holds nothing to draw leaves the whole batch to the other one.

    Args:
        first, second: the samplers.
        fraction: the part of the first, from 0 to 1.

    Raises:
        ValueError: `fraction` is out of range.
    """

    def __init__(self, first: Sampler, second: Sampler, fraction: float) -> None:
        super().__init__(first, second)
        self.fraction = fraction

    @property
    def fraction(self) -> float:
        """The part of the first storage."""
        return self._fraction

    @fraction.setter
    def fraction(self, value: float) -> None:
        number = float(value)
        if not math.isfinite(number) or not 0.0 <= number <= 1.0:
            raise ValueError(f"fraction ({value}) must be from 0 to 1")
        self._fraction = number

    def allot(self, storage: StorageEnsemble, batch_size: int) -> list[tuple[int, int]]:
        """The parts of the next batch: (number of the storage, records from it); no part is empty.

        Raises:
            EmptyBufferError: both storages hold nothing to draw.
        """
        first = round(self._fraction * batch_size)
        parts = [(0, first), (1, batch_size - first)]
        ready = [self.ready(storage, member, rows or batch_size) for member, rows in parts]
        if all(ready):
            return [(member, rows) for member, rows in parts if rows]
        if not any(ready):
            raise EmptyBufferError("buffers must hold a row that can be drawn; got none in either: extend one first")
        return [(ready.index(True), batch_size)]

    def can_sample(self, storage: Any, batch_size: int) -> bool:
        """Whether one of the storages holds something to draw."""
        return any(self._ready(storage, batch_size))

    def state_dict(self) -> dict[str, Any]:
        """The samplers' states by number, and `fraction`."""
        return {**super().state_dict(), "fraction": self._fraction}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the states over, and `fraction` with them."""
        fraction = float(state_dict["fraction"])
        super().load_state_dict(state_dict)
        self.fraction = fraction

    def __repr__(self) -> str:
        return f"{type(self).__name__}(fraction={self._fraction})"
