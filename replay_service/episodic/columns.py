"""One entry of the stored steps: an array `[size, *shape]` that lives as long as the buffer, written and read by slot.

Numbers lie in the memory of `buffer.columns`, so that the same bytes are a NumPy array for whoever calls in this
process and a tensor for the wire. What came as a torch tensor is given out as one, on its device. Anything else
(strings, None, objects) is kept in an array of objects.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from replay_service.arena import Arena
from replay_service.arguments import real_number
from replay_service.buffer.columns import Column, allocate, numpy_view
from replay_service.buffer.index import last_of_duplicates
from replay_service.episodic.casts import array_of, castable, in_range, tensor_in_range
from replay_service.errors import LayoutError, key_name
from replay_service.specs import Key
from replay_service.structure import Leaf

__all__ = ["StepColumn", "column_for"]

Array = NDArray[Any]
Ints = NDArray[np.int64]
RECYCLED_BYTES = 128 * 1024

# What a read allocates is recycled memory: fresh pages would cost more than the copy into them.
ARENA = Arena(max_buffers=16)


class StepColumn(ABC):
    """An entry of all steps.

    Attributes:
        key: its nested name.
        whole: the stored array itself, `[size, *shape]`.
        shape: of one step.
    """

    key: Key
    whole: Any
    shape: tuple[int, ...]

    @abstractmethod
    def fit(self, rows: Any) -> Any:
        """`rows` `[n, *shape]` in the form that `write` takes.

        Raises:
            LayoutError: another shape, or values that this entry cannot hold. Nothing is written.
        """

    @abstractmethod
    def write(self, slots: Ints, rows: Any) -> None:
        """Writes what `fit` returned (None: zeros, or None for objects); of a slot named twice, the last row stays."""

    @abstractmethod
    def read(self, slots: Ints) -> Any:
        """A copy of the rows at `slots` int64 of any shape, `[*slots.shape, *shape]`."""

    def read_into(self, slots: Ints, out: Tensor) -> None:
        """Reads the rows at `slots` into `out`, `[*slots.shape, *shape]`; not for objects."""
        raise TypeError(f"{key_name(self.key)} holds objects, which do not fit into a tensor")

    def fill(self, value: float | None) -> None:
        """Sets all rows to `value`; None means NaN, or None for objects.

        Raises:
            TypeError: None for an entry that can hold neither, or what is no number.
            LayoutError: a number that the entry cannot hold.
        """
        if value is None and self.nulls(np.empty(0, np.int64)) is None:
            raise TypeError(
                f"default_value (None) must be given: {key_name(self.key)} holds integers, which have no NaN"
            )
        if value is not None:
            if not isinstance(value, bool):
                real_number("default_value", value)
            self.whole[...] = self.fit(np.full((1, *self.shape), value))[0]
        else:
            self.whole[...] = self._null

    _null: Any = np.nan

    def nulls(self, slots: Ints) -> Array | None:
        """Flags `[n, …]` of what is NaN or None at `slots` `[n]`; None if nothing can be."""
        return None

    @property
    def tensor(self) -> Tensor | None:
        """The same memory as a tensor, or None for objects."""
        return None

    def _refuse(self, found: tuple[int, ...], rows: int) -> LayoutError:
        return LayoutError(
            f"{key_name(self.key)} (shape {list(found[1:])}) must have the shape {list(self.shape)} of the steps stored before, "
            f"for each of {rows} rows; got {list(found)}"
        )


class ArrayColumn(StepColumn):
    """Numbers that come and go as NumPy arrays; other dtypes are cast to the first one, as NumPy's assignment does."""

    def __init__(self, key: Key, shape: tuple[int, ...], dtype: np.dtype[Any], size: int) -> None:
        self.key, self.shape, self.dtype = key, shape, dtype
        self._row_bytes = dtype.itemsize * math.prod(shape)
        self._column: Column | None = None
        torch_dtype = _torch_dtype(dtype)
        if torch_dtype is None:
            self.whole = np.zeros((size, *shape), dtype)
            return
        self._column = allocate([Leaf(key, torch_dtype, shape)], size, torch.device("cpu"))[0]
        self.whole = self._column.tensor.numpy()

    def fit(self, rows: Any) -> Array:
        """`rows` as an array of numbers."""
        array = array_of(rows)
        if array.shape[1:] != self.shape:
            raise self._refuse(array.shape, array.shape[0])
        if array.dtype == self.dtype:
            return array
        if not castable(array.dtype, self.dtype) or not in_range(array, self.dtype):
            raise LayoutError(
                f"{key_name(self.key)} ({array.dtype}) must be numbers that fit {self.dtype}, the type of the steps stored "
                "before; got something else"
            )
        # Here, where it may fail: a cast that overflows is a warning, which may be an error, and writing must be neither.
        with np.errstate(all="ignore"):
            return array.astype(self.dtype)

    def write(self, slots: Ints, rows: Array | None) -> None:
        """Writes rows, or zeros."""
        self.whole[slots] = 0 if rows is None else rows

    def read(self, slots: Ints) -> Array:
        """A copy of rows."""
        whole: Array = self.whole
        size_bytes = self._row_bytes * slots.size
        if size_bytes < RECYCLED_BYTES:
            return whole.take(slots, 0)
        out = ARENA.take(size_bytes).view(self.dtype).reshape((*slots.shape, *self.shape))
        # Slots were checked; "clip" spares NumPy a buffer between.
        return whole.take(slots, 0, out, "clip")

    def read_into(self, slots: Ints, out: Tensor) -> None:
        """Gathers rows; into a tensor of any device."""
        if out.device.type != "cpu":
            out.copy_(torch.from_numpy(np.asarray(self.read(slots))))
            return
        target = numpy_view(out).reshape((*slots.shape, *self.shape))
        self.whole.take(slots, 0, target, "clip")

    def nulls(self, slots: Ints) -> Array | None:
        """Where rows are NaN."""
        return np.isnan(self.read(slots)) if self.dtype.kind in "fc" else None

    @property
    def tensor(self) -> Tensor | None:
        """The same memory as a tensor; None for dtypes that torch has not."""
        return None if self._column is None else self._column.tensor

    def __getstate__(self) -> dict[str, Any]:
        return {"key": self.key, "dtype": self.dtype, "whole": self.whole}

    def __setstate__(self, state: dict[str, Any]) -> None:
        whole = state["whole"]
        ArrayColumn.__init__(self, state["key"], whole.shape[1:], state["dtype"], whole.shape[0])
        self.whole[...] = whole


class TensorColumn(StepColumn):
    """Tensors, kept and given out as such on the device that the first ones were on."""

    def __init__(self, key: Key, shape: tuple[int, ...], like: Tensor, size: int) -> None:
        self.key, self.shape = key, shape
        self._column = allocate([Leaf(key, like.dtype, shape)], size, like.device)[0]
        self.whole = self._column.tensor

    def fit(self, rows: Any) -> Tensor:
        """`rows` as a tensor of the stored dtype."""
        try:
            tensor = (rows if isinstance(rows, Tensor) else torch.as_tensor(rows, device="cpu")).detach()
        except (TypeError, RuntimeError) as error:
            raise LayoutError(f"{key_name(self.key)} must be a tensor of numbers; {error}") from error
        if tuple(tensor.shape[1:]) != self.shape:
            raise self._refuse(tuple(tensor.shape), tensor.shape[0])
        stored: torch.dtype = self.whole.dtype
        if tensor.dtype == stored:
            return tensor
        if (tensor.is_complex() and not stored.is_complex) or not tensor_in_range(tensor, stored):
            raise LayoutError(
                f"{key_name(self.key)} ({tensor.dtype}) must be numbers that fit {stored}, the type of the steps stored before"
            )
        return tensor.to(stored)

    def write(self, slots: Ints, rows: Tensor | None) -> None:
        """Writes rows, or zeros."""
        index = torch.from_numpy(slots)
        if rows is None:
            rows = self.whole.new_zeros(slots.size, *self.shape)
        winners = last_of_duplicates(index)
        if winners is None:
            self._column.write_at(index, rows)
        else:
            self._column.write_at(index[winners], rows[winners.to(rows.device)])

    def read(self, slots: Ints) -> Tensor:
        """A copy of rows."""
        flat = torch.from_numpy(np.ascontiguousarray(slots).reshape(-1))
        return self._column.gathered(flat).reshape((*slots.shape, *self.shape))

    def read_into(self, slots: Ints, out: Tensor) -> None:
        """Gathers rows."""
        flat = np.ascontiguousarray(slots).reshape(-1)
        self._column.gather(torch.from_numpy(flat), out.view((flat.size, *self.shape)))

    def nulls(self, slots: Ints) -> Array | None:
        """Where rows are NaN."""
        return self.read(slots).isnan().cpu().numpy() if self.whole.is_floating_point() else None

    @property
    def tensor(self) -> Tensor:
        """The stored tensor."""
        whole: Tensor = self.whole
        return whole


class ObjectColumn(StepColumn):
    """Anything else; of arrays of objects the outer shape is kept."""

    _null = None

    def __init__(self, key: Key, shape: tuple[int, ...], size: int) -> None:
        self.key, self.shape = key, shape
        self.whole = np.full((size, *shape), None, object)

    def fit(self, rows: Any) -> Array:
        """`rows` as an array of objects."""
        array = as_objects(rows)
        if self.shape == () and array.ndim > 1:  # arrays among other objects: each row is one
            array = as_objects(list(rows))
        if array.shape[1:] != self.shape:
            raise self._refuse(array.shape, array.shape[0])
        return array

    def fill(self, value: Any) -> None:
        """Sets all rows to `value`, whatever it is."""
        for place in np.ndindex(self.whole.shape):
            self.whole[place] = value

    def write(self, slots: Ints, rows: Array | None) -> None:
        """Writes rows, or None."""
        self.whole[slots] = rows

    def read(self, slots: Ints) -> Array:
        """The objects themselves, in a new array."""
        whole: Array = self.whole
        return whole.take(slots, 0)

    def nulls(self, slots: Ints) -> Array:
        """Where rows are None, or a NaN among objects."""
        rows = self.read(slots)
        found = [row is None or (isinstance(row, float) and row != row) for row in rows.reshape(-1)]
        return np.array(found, np.bool_).reshape(rows.shape)


def column_for(key: Key, rows: Any, size: int, dtype: np.dtype[Any] | None = None) -> StepColumn:
    """A new entry of zeros (None for objects) for rows like `rows` `[n, *shape]`; `dtype` makes numbers of that type."""
    if dtype is not None:
        shape = tuple(rows.shape[1:])
        return ArrayColumn(key, shape, dtype, size)
    if isinstance(rows, Tensor):
        return TensorColumn(key, tuple(rows.shape[1:]), rows, size)
    array = np.asarray(rows)
    if array.dtype.kind in "OUSV":
        return ObjectColumn(key, array.shape[1:], size)
    return ArrayColumn(key, array.shape[1:], array.dtype, size)


def as_rows(name: str, rows: Any) -> Array | Tensor:
    """`rows` as an array, or the tensor that it is; a TypeError for a tensor without memory and for a single value."""
    if isinstance(rows, Tensor) and (rows.is_meta or rows.is_nested or rows.layout is not torch.strided):
        raise TypeError(f"{name} must be a dense tensor with memory; got another one")
    try:
        found = rows if isinstance(rows, Tensor) else np.asarray(rows)
    except ValueError as error:
        raise ValueError(f"{name} must have rows of one shape; {error}") from error
    if found.ndim == 0:
        raise TypeError(f"{name} ({rows!r:.60}) must have one row for each step; got a single value")
    return found


def as_objects(rows: Any) -> Array:
    """`rows` as an array of objects, of which each row is one unless `rows` is an array already."""
    if isinstance(rows, np.ndarray):
        return rows.astype(object)
    array = np.empty(len(rows), object)
    for place, row in enumerate(rows):
        array[place] = row
    return array


def _torch_dtype(dtype: np.dtype[Any]) -> torch.dtype | None:
    try:
        return torch.from_numpy(np.empty(0, dtype)).dtype
    except (TypeError, ValueError):  # times, long doubles, foreign byte orders
        return None
