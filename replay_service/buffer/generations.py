"""Generation stamps: one counter per slot that tells whether a slot still holds the record one has seen.

Semantics as the product's document states them ("Detecting overwritten slots"): one stamp per write, not per call; -1 for "no usable
stamp"; monotonic across `empty()`; owned by the storage, so that two writers on one storage share them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["NO_STAMP", "Generations"]

NO_STAMP = -1
FIRST_ALLOCATION = 1024


class Generations:
    """Counts the writes of every slot.

    Args:
        capacity: slots; an unbounded storage (more than `dense_limit`) gets counters that grow on demand.
        dense_limit: up to this many slots the counters are allocated at once, so that their tensor never changes.
    """

    def __init__(self, capacity: int, dense_limit: int = 1 << 24) -> None:
        self._capacity = capacity
        size = capacity if capacity <= dense_limit else FIRST_ALLOCATION
        self._stamps = torch.full((size,), NO_STAMP, dtype=torch.int64, device="cpu")

    def advance_range(self, start: int, stop: int, writes: int = 1) -> None:
        """Stamps `writes` writes of each slot in `[start, stop)`."""
        self._grow(stop)
        self._stamps[start:stop] += writes

    def advance(self, index: Tensor) -> None:
        """Stamps one write per entry of `index` int64 `[n]`; a slot named twice advances by two."""
        if index.numel():
            self._grow(int(index.max()) + 1)
            self._stamps.index_add_(0, index, torch.ones_like(index))

    def advance_written(self) -> None:
        """Makes every stamp given out so far stale (`empty()`); slots never written keep -1."""
        self._stamps[self._stamps != NO_STAMP] += 1

    def restart(self, filled: int) -> None:
        """Stamps a write of the first `filled` slots and makes every older stamp stale: records came that nobody has stamped."""
        self._grow(filled)
        written = self._stamps != NO_STAMP
        written[:filled] = True
        self._stamps[written] += 1

    def of(self, index: Tensor) -> Tensor:
        """Stamps int64, shaped as `index`; -1 where the slot was never written or does not exist."""
        index = index.to("cpu", torch.int64)
        inside = (index >= 0) & (index < self._stamps.numel())
        if bool(inside.all()):
            return self._stamps[index]
        stamps = self._stamps[index.clamp(0, self._stamps.numel() - 1)]
        return torch.where(inside, stamps, NO_STAMP)

    def state_dict(self) -> dict[str, Any]:
        """A copy of the counters."""
        return {"stamps": self._stamps.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes the counters over, by copy and in place; those of slots that do not exist here are left out."""
        saved: Tensor = state["stamps"][: self._capacity]
        self._grow(saved.numel())
        self._stamps[: saved.numel()] = saved
        self._stamps[saved.numel() :] = NO_STAMP

    def share(self) -> None:
        """Moves the counters to memory that processes started from this one see.

        Raises:
            ValueError: counters that grow on demand would part.
        """
        if self._stamps.numel() < self._capacity:
            raise ValueError(
                f"capacity ({self._capacity}) must be at most {self._stamps.numel()} to share generation stamps"
            )
        self._stamps.share_memory_()  # type: ignore[no-untyped-call]

    def _grow(self, needed: int) -> None:
        size = self._stamps.numel()
        if needed > size:
            grown = torch.full((min(max(needed, 2 * size), self._capacity),), NO_STAMP, dtype=torch.int64, device="cpu")
            grown[:size] = self._stamps
            self._stamps = grown
