"""Sums over ranges of many numbers that change, under the name and with the calls of the second document's library."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from replay_service.buffer.sum_tree import SumTree
from replay_service.episodic.refusals import RefusedValueError

__all__ = ["SegmentTree"]


class SegmentTree:
    """`size` float64 leaves, all zero at first: `tree[index]`, `tree[index] = value`, sums, and searches by prefix.

    A view on `SumTree`, which prioritized buffers draw from.

    Raises:
        ValueError: `size` is below one.
    """

    def __init__(self, size: int) -> None:
        self._tree = SumTree(size)

    def __len__(self) -> int:
        return len(self._tree)

    def __getitem__(self, index: ArrayLike) -> Any:
        """Leaves, float64 in the shape of `index`; IndexError where one is not below `size`."""
        leaves = self._tree.get(index)
        return leaves if leaves.ndim else float(leaves)

    def __setitem__(self, index: ArrayLike, value: ArrayLike) -> None:
        """Sets leaves to finite numbers that are not negative; of a leaf named twice, the last stands."""
        numbers = np.asarray(value, np.float64)
        wrong = np.flatnonzero(~(np.isfinite(numbers) & (numbers >= 0)))
        if wrong.size:
            raise RefusedValueError(
                f"value ({numbers.reshape(-1)[wrong[0]]}) must be finite and not negative; got it at place {wrong[0]}"
            )
        places = np.asarray(index).reshape(-1)
        self._tree.update(places, np.broadcast_to(numbers.reshape(-1) if numbers.ndim else numbers, places.shape))

    def reduce(self, start: int = 0, end: int | None = None) -> float:
        """Sum of the leaves from `start` up to, not including, `end`; a negative `end` counts from the back.

        Raises:
            IndexError: not `0 <= start <= end <= size`.
        """
        return self._tree.sum(start, end if end is None or end >= 0 else end + len(self))

    def get_prefix_sum_idx(self, value: ArrayLike) -> Any:
        """The first leaf up to which, itself included, the leaves sum to `value` or more: int64 in the shape of `value`.

        Raises:
            ValueError: a value is not in `[0, total)`.
            PriorityError: every leaf is zero.
        """
        values = np.asarray(value, np.float64)
        wrong = np.flatnonzero(~((values >= 0.0) & (values < self._tree.total)))
        if wrong.size and self._tree.total > 0.0:
            raise RefusedValueError(
                f"value ({values.reshape(-1)[wrong[0]]}) must be in [0, {self._tree.total:g}); "
                f"got it at place {wrong[0]} of {values.size}"
            )
        # The tree looks for "more than", this call for "at least": the next number below asks one for the other.
        below = np.maximum(np.nextafter(values.reshape(-1), -np.inf), 0.0)
        found = self._tree.prefix_search(below).reshape(values.shape)
        return found if found.ndim else int(found)
