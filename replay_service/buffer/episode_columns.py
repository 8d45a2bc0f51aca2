"""What callers hand to `episodes.EpisodeIndex`, checked and brought into the one form that the compiled loops take."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Column", "Kind", "as_column", "as_integers", "flat_integers", "per_lane", "span_steps"]

Ints = NDArray[np.int64]
Kind = Literal["ends", "ids"]


class Column(NamedTuple):
    """What marks the bounds of some rows: end flags (1: the last of its episode, 0) or trajectory ids, int64."""

    kind: Kind
    values: Ints

    def flat(self, shape: tuple[int, ...]) -> Column:
        """The same with contiguous values `[prod(shape)]`; a missing last axis of one is as good as one that is there.

        Raises:
            ValueError: the values have another shape.
        """
        found = self.values.shape
        if found != shape and found != (*shape, 1) and (*found, 1) != shape:
            raise ValueError(f"{self.kind} {list(found)} must have the shape {list(shape)} of the rows they belong to")
        return Column(self.kind, flat_integers(self.values))


def as_column(ends: ArrayLike | None, ids: ArrayLike | None) -> Column:
    """Checks that one of the two is given, and gives it the type that the index keeps.

    Flags may be of any number type (not zero: the end). Ids may be integers or floats; only whether two are equal
    matters.

    Raises:
        TypeError: both or neither are given, or ids that are not numbers.
    """
    if (ends is None) == (ids is None):
        raise TypeError(f"exactly one of ends and ids must be given; got {'neither' if ends is None else 'both'}")
    if ends is not None:
        return Column("ends", (np.asarray(ends) != 0).astype(np.int64))
    numbers = np.asarray(ids)
    if numbers.dtype.kind == "f":
        # Bit patterns are equal where floats are, once -0.0 is 0.0.
        return Column("ids", (numbers.astype(np.float64) + 0.0).view(np.int64))
    if numbers.dtype.kind not in "iub":
        raise TypeError(f"ids ({numbers.dtype}) must be integers or floats; number the trajectories first")
    return Column("ids", numbers.astype(np.int64, copy=False))


def as_integers(name: str, values: ArrayLike) -> Ints:
    """`values` as int64 of the same shape.

    Raises:
        TypeError: they are not integers.
    """
    numbers = np.asarray(values)
    if numbers.dtype.kind not in "iu" and numbers.size:
        raise TypeError(f"{name} ({numbers.dtype}) must be integers; turn a mask into slots with nonzero()")
    return numbers.astype(np.int64, copy=False)


def flat_integers(values: Ints) -> Ints:
    """`values` as compiled loops take them: one axis, contiguous, aligned and writable; copied only if they are not."""
    # Rows that came over a wire or from a broadcast are often read-only, which is a type of its own to a compiled loop.
    return np.require(values, np.int64, ("C", "A", "W")).reshape(-1)


def per_lane(name: str, values: ArrayLike, lanes: int) -> Ints:
    """One number for all lanes or one for each, as int64 `[lanes]`.

    Raises:
        TypeError: they are not integers.
        ValueError: there are neither one nor `lanes` of them.
    """
    numbers = as_integers(name, values).reshape(-1)
    if numbers.size not in (1, lanes):
        raise ValueError(f"{name} ({numbers.size} numbers) must be one number, or one for each of the {lanes} lanes")
    return np.broadcast_to(numbers, (lanes,))


def span_steps(span: bool | int | tuple[bool | int, bool | int], slice_len: int) -> tuple[int, int]:
    """How many steps of a slice may hang over the left and the right end of its fragment; True: all but one.

    Raises:
        ValueError: a number of steps is negative or not below `slice_len`.
    """
    left, right = span if isinstance(span, tuple) else (span, span)
    steps = [slice_len - 1 if side is True else int(side) for side in (left, right)]
    for side, count in zip(("left", "right"), steps, strict=True):
        if not 0 <= count < slice_len:
            raise ValueError(
                f"{side} span ({count}) must be at least 0 and below the slice length; got slices of {slice_len}"
            )
    return steps[0], steps[1]
