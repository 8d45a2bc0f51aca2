"""Reductions over all trajectories of a ring at once: one pass over a column, no loop over trajectories.

Rows are numbered lane after lane, `lane * rows + slot`. Every row belongs to one trajectory, so trajectories cut the numbers into pieces
that follow each other without a gap: one piece each, and two for one that goes over the ring's edge, whose parts are put together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["Segments"]

Ints = NDArray[np.int64]


class Segments:
    """Where the trajectories of a ring of `rows` slots and `lanes` lanes lie.

    Args:
        slot: int64 `[n]`, the slot of the first step of each.
        lane: int64 `[n]`, its lane.
        length: int64 `[n]`, its steps, at least one; together they cover every row.
        rows, lanes: filled slots, and records per slot.
        oldest: the slot of the oldest row; a lane's trajectories are in order from there on.
    """

    def __init__(self, slot: Ints, lane: Ints, length: Ints, rows: int, lanes: int, oldest: int = 0) -> None:
        self.length = length
        self._slot = slot
        self._lane = lane
        self._rows = rows
        self._lanes = lanes
        self._oldest = oldest
        ahead = np.minimum(length, rows - slot)
        self._split = np.flatnonzero(ahead < length)
        pieces = np.concatenate([lane * rows + slot, lane[self._split] * rows])
        order = np.argsort(pieces, kind="stable")
        self._starts = pieces[order]
        self._owner = np.concatenate([np.arange(slot.size), self._split])[order]
        self._place = np.empty_like(order)
        self._place[order] = np.arange(order.size)

    def __len__(self) -> int:
        return self.length.size

    def reduced(self, ufunc: np.ufunc, values: NDArray[Any], dtype: DTypeLike | None = None) -> NDArray[Any]:
        """`ufunc` over all values of each trajectory, `[n]`; `values` is `[rows * lanes, k]` by row number."""
        width = values.shape[1]
        pieces = ufunc.reduceat(values.reshape(-1), self._starts * width, dtype=dtype)
        count = len(self)
        whole = pieces[self._place[:count]]
        if self._split.size:
            whole[self._split] = ufunc(whole[self._split], pieces[self._place[count:]])
        return whole

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """The value of each trajectory `[n]` for all its rows, by row number."""
        ends = np.append(self._starts[1:], self._rows * self._lanes)
        return np.repeat(values[self._owner], ends - self._starts)

    def first_rows(self) -> Ints:
        """The row number of each first step."""
        return self._lane * self._rows + self._slot

    def last_rows(self) -> Ints:
        """The row number of each last step."""
        return self._lane * self._rows + (self._slot + self.length - 1) % self._rows

    def in_order(self, wanted: NDArray[np.bool_]) -> Ints:
        """The trajectories for which `wanted` is set: lane after lane, the oldest first."""
        chosen: Ints = np.flatnonzero(wanted)
        # The first step of the oldest may be the oldest row itself; all others started later in the same round.
        age = (self._slot[chosen] - self._oldest) % self._rows
        return np.take(chosen, np.lexsort((age, self._lane[chosen])))

    def records(self, chosen: Ints) -> Ints:
        """The flat records `slot * lanes + lane` of the steps of `chosen`, one trajectory after the other."""
        length = self.length[chosen]
        before = np.cumsum(length) - length
        step = np.arange(length.sum()) - np.repeat(before, length)
        slot: Ints = (np.repeat(self._slot[chosen], length) + step) % self._rows
        if self._lanes > 1:
            slot = slot * self._lanes + np.repeat(self._lane[chosen], length)
        return slot

    def run(self, place: int) -> slice | None:
        """The slots of one trajectory if they are neighbours and there are no lanes, else None."""
        start, length = int(self._slot[place]), int(self.length[place])
        return slice(start, start + length) if self._lanes == 1 and start + length <= self._rows else None
