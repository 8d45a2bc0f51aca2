"""Ranks: which stored records are the worst ones, kept in a heap."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ranks"]

LEAST_STALE = 64


class Ranks:
    """The rank of every slot, lowest first; of equal ones the first slot. Every call costs the logarithm of the number of slots.

    Args:
        ranks: float64 `[n]`, those of the slots 0 to n - 1; NaN counts as the lowest.
    """

    def __init__(self, ranks: NDArray[np.float64]) -> None:
        self._ranks: list[float] = np.where(np.isnan(ranks), -math.inf, ranks).tolist()
        self._rebuild()

    def __len__(self) -> int:
        return len(self._ranks)

    def lowest(self) -> tuple[float, int] | None:
        """Rank and slot of the worst record; None if there is none (any more)."""
        heap = self._heap
        # An entry that does not tell the slot's rank was overtaken by another one.
        while heap and self._ranks[heap[0][1]] != heap[0][0]:
            heapq.heappop(heap)
        return heap[0] if heap else None

    def beaten_by(self, rising: Iterable[float]) -> list[int]:
        """The slots whose records make room for records of the ranks `rising`, best first: one slot each, as long as they are better.

        Nothing changes.
        """
        taken: dict[int, float] = {}
        for rank in rising:
            lowest = self.lowest()
            while lowest is not None and lowest[1] in taken:  # a slot that got its old rank back is in the heap twice
                heapq.heappop(self._heap)
                lowest = self.lowest()
            if lowest is None or not rank > lowest[0]:
                break
            heapq.heappop(self._heap)
            taken[lowest[1]] = lowest[0]
        for slot, rank in taken.items():
            heapq.heappush(self._heap, (rank, slot))
        return list(taken)

    def put(self, slots: Iterable[int], ranks: Iterable[float]) -> None:
        """Sets the ranks of slots; new slots must follow the known ones."""
        for slot, rank in zip(slots, ranks, strict=True):
            kept = -math.inf if math.isnan(rank) else rank
            if slot == len(self._ranks):
                self._ranks.append(kept)
            else:
                self._ranks[slot] = kept
            heapq.heappush(self._heap, (kept, slot))
        if len(self._heap) > 2 * len(self._ranks) + LEAST_STALE:
            self._rebuild()

    def _rebuild(self) -> None:
        self._heap = list(zip(self._ranks, range(len(self._ranks)), strict=True))
        heapq.heapify(self._heap)
