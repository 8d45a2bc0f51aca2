"""Which frames of a file are read in one go."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Reading", "readings"]

Ints = NDArray[np.int64]


class Reading:
    """What is read of one file: every frame once, in the order in which they lie there.

    Args:
        frames: frame numbers int64 `[n]`, in any order, some perhaps several times.

    Attributes:
        frames: int64 `[m]`, ascending, without repetitions.
        place: int64 `[n]`, where in `frames` each one asked for is.
    """

    __slots__ = ("frames", "place")

    def __init__(self, frames: Ints) -> None:
        if frames.size and np.all(np.diff(frames) == 1):  # a slice: nothing to sort
            self.frames, self.place = frames, np.arange(frames.size)
        else:
            self.frames, self.place = np.unique(frames, return_inverse=True)

    def runs(self) -> list[tuple[int, int]]:
        """The runs of neighbouring frames, as (first, behind the last)."""
        ends = np.flatnonzero(np.diff(self.frames) != 1)
        firsts = self.frames[np.concatenate([[0], ends + 1])]
        lasts = self.frames[np.concatenate([ends, [self.frames.size - 1]])]
        return list(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))


def readings(files: Ints) -> list[tuple[int, Ints]]:
    """The rows int64 `[n]` of every file in `files` int64 `[rows]`, in the order in which the files come first."""
    numbers, first, inverse = np.unique(files, return_index=True, return_inverse=True)
    if numbers.size == 1:
        return [(int(numbers[0]), np.arange(files.size))]
    by_file = np.argsort(inverse, kind="stable")
    parts = np.split(by_file, np.cumsum(np.bincount(inverse))[:-1])
    return [(int(numbers[place]), parts[place]) for place in np.argsort(first)]
