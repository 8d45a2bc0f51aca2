"""Sums over many non-negative numbers that change: draws in proportion to them, their total, their extremes.

`SumTree` holds `capacity` float64 leaves, one for each slot of a buffer. Drawing or updating `n` of them takes time
in proportion to `n * log(capacity)`, in compiled loops that release the GIL. Callers keep calls apart (the buffer's
lock) and check what they write: leaves must be finite and not negative. With that, a leaf of zero is never drawn,
whatever is rounded.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from replay_service.errors import PriorityError

__all__ = ["SumTree"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Scalar = TypeVar("Scalar", bound=np.generic)

DOUBLES_PER_CACHE_LINE = 8


@cache
def _kernels() -> ModuleType:
    # Not at the top: a process that never draws by priority (a collector, a uniform buffer) shall not wait for numba.
    from replay_service.buffer import sum_tree_kernels

    return sum_tree_kernels


class SumTree:
    """`capacity` float64 leaves, all zero at first, with draws in proportion to them.

    Args:
        capacity: number of leaves; `resize` adds more later.
        extremes: keep the largest and the smallest positive leaf at hand as leaves change. Without it updates are
            faster, and `max` and `min_positive` look at every leaf.

    Raises:
        ValueError: `capacity` is below one.
    """

    def __init__(self, capacity: int, *, extremes: bool = False) -> None:
        self._allocate(capacity, extremes)

    def _allocate(self, capacity: int, extremes: bool) -> None:
        if capacity < 1:
            raise ValueError(f"capacity ({capacity}) must be at least 1; got a tree without leaves")
        levels = _levels(capacity)
        # The root's level is a single node at the very end.
        size = int(levels[-1, 0]) + 1
        inner = size - int(levels[1, 0])
        # All three or, where memory is short, none.
        nodes, pairs = _zeros_on_cache_lines(size), np.full((inner if extremes else 0, 2), (0.0, np.inf))
        self._levels, self._nodes, self._extremes = levels, nodes, pairs

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Arrays that come out of shared memory, as from Ray, cannot be written to.
        self.__dict__.update({name: np.require(array, requirements="W") for name, array in state.items()})

    @property
    def capacity(self) -> int:
        """Number of leaves."""
        return int(self._levels[0, 1])

    def __len__(self) -> int:
        return self.capacity

    def __repr__(self) -> str:
        return f"SumTree(capacity={self.capacity}, extremes={self._keeps_extremes}, total={self.total:g})"

    @property
    def total(self) -> float:
        """Sum of all leaves."""
        return float(self._nodes[-1])

    def max(self) -> float:
        """Largest leaf, 0.0 if all are zero."""
        return float(self._extremes[-1, 0] if self._keeps_extremes else self._leaves.max())

    def min_positive(self) -> float:
        """Smallest leaf above zero, infinity if all are zero."""
        if self._keeps_extremes:
            return float(self._extremes[-1, 1])
        return float(self._leaves.min(where=self._leaves > 0.0, initial=np.inf))

    def draw(self, uniforms: ArrayLike) -> Ints:
        """Leaves drawn with probability `leaf / total`.

        Args:
            uniforms: float64 `[n]` in `[0, 1)`: independent for independent draws, one from each n-th of the interval
                for a stratified draw.

        Returns:
            int64 `[n]`, in the order of `uniforms`; never a leaf of zero.

        Raises:
            PriorityError: the total is zero (or beyond float64).
            ValueError: a uniform lies outside `[0, 1]`; 1.0 itself, which strata reach by rounding, draws the last
                leaf above zero.
        """
        return self.draw_with_mass(uniforms)[0]

    def draw_with_mass(self, uniforms: ArrayLike) -> tuple[Ints, Floats]:
        """As `draw`, with the drawn leaves themselves, float64 `[n]`: `leaf / total` is the probability of a draw."""
        return self._find("uniforms", uniforms, 1.0, self.total)

    def prefix_search(self, mass: ArrayLike) -> Ints:
        """For each mass the first leaf up to which, itself included, the leaves sum to more than that.

        Args:
            mass: float64 `[n]` in `[0, total]`; the total itself finds the last leaf above zero.

        Returns:
            int64 `[n]`; never a leaf of zero.

        Raises:
            PriorityError: the total is zero (or beyond float64).
            ValueError: a mass lies outside `[0, total]`.
        """
        return self._find("mass", mass, self.total, 1.0)[0]

    def _find(self, name: str, points: ArrayLike, limit: float, scale: float) -> tuple[Ints, Floats]:
        if not 0.0 < self.total < np.inf:
            raise PriorityError(
                f"total ({self.total}) must be positive and finite to draw; got leaves that sum to it; "
                "give at least one leaf a value above zero"
            )
        points = _vector(name, points, np.float64)
        index = np.empty(points.size, np.int64)
        value = np.empty(points.size)
        wrong = _kernels().draw(self._nodes, self._levels, points, limit, scale, index, value)
        if wrong >= 0:
            raise ValueError(
                f"{name} ({points[wrong]}) must be in [0, {limit:g}]; got it at place {wrong} of {points.size}"
            )
        return index, value

    def update(self, index: ArrayLike, value: ArrayLike) -> None:
        """Set leaves.

        Args:
            index: int64 `[n]`; where a leaf occurs twice, its last value stands.
            value: float64 `[n]`, or one number for all; finite and not negative, which is the caller's to check.

        Raises:
            IndexError: an index is negative or not below `capacity`. Nothing was written.
            TypeError: `index` does not hold integers.
            ValueError: the shapes do not fit.
        """
        index = _indices(index)
        value = np.asarray(value, np.float64)
        value = _vector("value", np.full(index.size, value) if value.ndim == 0 else value, np.float64)
        if value.size != index.size:
            raise ValueError(f"value ({value.size} numbers) must be as long as index; got {index.size} indices")
        wrong = _kernels().update(self._nodes, self._extremes, self._levels, index, value)
        if wrong >= 0:
            raise self._out_of_range(int(index[wrong]))

    def update_range(self, start: int, stop: int, value: ArrayLike) -> None:
        """Set the leaves from `start` up to, not including, `stop`; the fast way for fresh rows.

        Args:
            start: first leaf.
            stop: one past the last leaf; equal to `start` changes nothing.
            value: float64 `[stop - start]`, or one number for all; finite and not negative, which is the caller's to
                check.

        Raises:
            IndexError: not `0 <= start <= stop <= capacity`. Nothing was written.
            ValueError: the shapes do not fit.
        """
        self._check_range(start, stop)
        value = np.asarray(value, np.float64)
        if value.shape not in ((), (stop - start,)):
            raise ValueError(
                f"value (shape {value.shape}) must be one number or one for each leaf; got {stop - start} leaves"
            )
        if start < stop:
            self._nodes[start:stop] = value
            _kernels().refresh(self._nodes, self._extremes, self._levels, start, stop)

    def fill(self, value: float) -> None:
        """Set every leaf to `value`, finite and not negative, which is the caller's to check."""
        self.update_range(0, self.capacity, value)

    def clear(self) -> None:
        """Set every leaf to zero."""
        self._nodes[:] = 0.0
        self._extremes[:] = (0.0, np.inf)

    def get(self, index: ArrayLike) -> Floats:
        """Values of the leaves `index`, int64 of any shape, as float64 of that shape.

        Raises:
            IndexError: an index is negative or not below `capacity`.
            TypeError: `index` does not hold integers.
        """
        index = np.asarray(index)
        place = _indices(index.reshape(-1))
        wrong = np.flatnonzero((place < 0) | (place >= self.capacity))
        if wrong.size:
            raise self._out_of_range(int(place[wrong[0]]))
        return np.asarray(self._nodes[place]).reshape(index.shape)

    def sum(self, start: int = 0, stop: int | None = None) -> float:
        """Sum of the leaves from `start` up to, not including, `stop` (None: all the rest).

        Raises:
            IndexError: not `0 <= start <= stop <= capacity`.
        """
        stop = self.capacity if stop is None else stop
        self._check_range(start, stop)
        return float(_kernels().sum_between(self._nodes, self._levels, start, stop))

    def resize(self, capacity: int) -> None:
        """Add leaves of zero until there are `capacity`, in time proportional to that.

        Raises:
            ValueError: `capacity` is less than now.
        """
        if capacity < self.capacity:
            raise ValueError(f"capacity ({capacity}) must not shrink; got a tree of {self.capacity} leaves")
        leaves = self._leaves
        self._allocate(capacity, self._keeps_extremes)
        self.update_range(0, leaves.size, leaves)

    def state(self) -> Floats:
        """A copy of all leaves, float64 `[capacity]`."""
        return self._leaves.copy()

    def load_state(self, leaves: ArrayLike) -> None:
        """Set all leaves from a copy of `leaves`, float64 `[capacity]`, as `state` gave them.

        Raises:
            PriorityError: a value is negative, NaN or infinite. Nothing was written.
            ValueError: the shape is another one.
        """
        leaves = np.asarray(leaves, np.float64)
        if leaves.shape != (self.capacity,):
            raise ValueError(
                f"leaves (shape {leaves.shape}) must have one number for each of the tree's {self.capacity} leaves; "
                "got another shape; resize the tree first"
            )
        wrong = np.flatnonzero(~((leaves >= 0.0) & (leaves < np.inf)))
        if wrong.size:
            raise PriorityError(
                f"leaves ({leaves[wrong[0]]}) must be finite and not negative; got it at place {wrong[0]}"
            )
        self.update_range(0, self.capacity, leaves)

    @property
    def _keeps_extremes(self) -> bool:
        return self._extremes.shape[0] > 0

    @property
    def _leaves(self) -> Floats:
        return self._nodes[: self.capacity]

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.capacity:
            raise IndexError(
                f"range ({start} to {stop}) must lie within 0 to capacity; got a capacity of {self.capacity}"
            )

    def _out_of_range(self, index: int) -> IndexError:
        return IndexError(f"index ({index}) must be at least 0 and below capacity; got a capacity of {self.capacity}")


def _levels(capacity: int) -> Ints:
    """(offset, width) of each level, leaves first (see `sum_tree_kernels`); two at least: the root is an inner node."""
    levels = [(0, capacity)]
    while len(levels) < 2 or levels[-1][1] > 1:
        offset, width = levels[-1]
        parents = -(-width // 4)
        levels.append((offset + 4 * parents, parents))
    return np.array(levels, np.int64)


def _zeros_on_cache_lines(size: int) -> Floats:
    # Four children then share a cache line; the tree is right without it (after a copy or a pickle), only slower.
    room = np.zeros(size + DOUBLES_PER_CACHE_LINE)
    start = -room.ctypes.data // room.itemsize % DOUBLES_PER_CACHE_LINE
    return room[start : start + size]


def _indices(index: ArrayLike) -> Ints:
    index = np.asarray(index)
    if index.dtype.kind not in "iu" and index.size:
        raise TypeError(f"index (dtype {index.dtype}) must be integers; got something else; cast it to int64")
    return _vector("index", index, np.int64)


def _vector(name: str, data: ArrayLike, dtype: type[Scalar]) -> NDArray[Scalar]:
    """`data` as kernels take it: `[n]`, of `dtype`, contiguous and writable, all of which are in their signatures."""
    array = np.asarray(data, dtype, order="C")
    if array.ndim != 1:
        raise ValueError(f"{name} (shape {array.shape}) must be [n]; got {array.ndim} dimensions; reshape it to (-1,)")
    return array if array.flags.writeable else array.copy()
