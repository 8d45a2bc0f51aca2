"""What a single value becomes inside a `Batch`, and what can be done to it there: take rows, write rows, reset, compare.

A leaf is a numpy array or scalar, a torch tensor, `None` (no column), or any other object, which has no rows.
"""

from __future__ import annotations

from collections.abc import ItemsView, Sequence
from numbers import Number
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "NUMERIC_KINDS",
    "Nested",
    "as_leaf",
    "blank_like",
    "blanked",
    "fitted",
    "has_rows",
    "is_mapping_sequence",
    "numpy_index",
    "object_array",
    "same",
    "taken",
    "torch_index",
]

NUMERIC_KINDS = "biufc"
NestedT = TypeVar("NestedT", bound="Nested")


class Nested:
    """What the functions on leaves know of a `Batch`: its values by name, and how to make another one of such values."""

    __slots__ = ()

    def items(self) -> ItemsView[str, Any]:
        """(name, leaf or nested batch), in order."""
        raise NotImplementedError

    @classmethod
    def wrap(cls: type[NestedT], content: dict[str, Any]) -> NestedT:
        """A batch of values that need no conversion; the dict becomes the batch's own."""
        raise NotImplementedError


def is_mapping_sequence(value: Any) -> bool:
    """Whether `value` is a non-empty list, tuple or object array of nothing but dicts and batches."""
    if isinstance(value, np.ndarray):
        if value.dtype != object or value.ndim != 1:
            return False
    elif not isinstance(value, list | tuple):
        return False
    return len(value) > 0 and all(isinstance(entry, dict | Nested) for entry in value)


def as_leaf(value: Any) -> Any:
    """The leaf that `value`, which is no dict and no batch, is kept as.

    Numbers and bools become arrays of no dimension; lists and tuples become arrays, of dtype object where they hold
    strings, None or rows of different lengths; lists of tensors of one shape become one tensor; arrays of strings get
    dtype object; an object array of no dimension gives what it holds; everything else stays what it is, by reference.

    Raises:
        TypeError: a list of tensors of different shapes, or of tensors and something else.
    """
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "US":
            value = value.astype(object)
        return value.item() if value.dtype == object and value.ndim == 0 else value
    if isinstance(value, list | tuple):
        return _as_array(value)
    if isinstance(value, Number | np.generic) and not isinstance(value, np.str_ | np.bytes_):
        return np.asanyarray(value)
    return value


def _as_array(values: Sequence[Any]) -> np.ndarray | Tensor:
    if any(isinstance(value, Tensor) for value in values):
        if not all(isinstance(value, Tensor) and value.shape == values[0].shape for value in values):
            kinds = [list(v.shape) if isinstance(v, Tensor) else type(v).__name__ for v in values]
            raise TypeError(f"a list with tensors must hold tensors of one shape and nothing else; got {kinds}")
        return torch.stack(list(values))
    try:
        array = np.asanyarray(values)
    except ValueError:  # rows of different lengths
        return object_array(values)
    return array.astype(object) if array.dtype.kind in "US" else array


def object_array(values: Sequence[Any]) -> np.ndarray:
    """The values as they are, in an object array `[len(values)]`."""
    array = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):
        array[place] = value
    return array


def has_rows(leaf: Any) -> bool:
    """Whether `leaf` is an array or tensor with at least one dimension."""
    return isinstance(leaf, np.ndarray | Tensor) and leaf.ndim > 0


def numpy_index(index: Any) -> Any:
    """`index` with arrays of numpy in the place of tensors."""
    if isinstance(index, tuple):
        return tuple(map(numpy_index, index))
    return index.detach().cpu().numpy() if isinstance(index, Tensor) else index


def torch_index(index: Any, leaf: Tensor) -> Any:
    """`index` as tensors take it: no arrays of numpy, no slices that run backwards."""
    parts = index if isinstance(index, tuple) else (index,)
    if not any(isinstance(part, np.ndarray | np.generic | list | slice) for part in parts):
        return index
    adapted = []
    dimension = 0
    for part in parts:
        if isinstance(part, slice) and (part.step or 1) < 0:
            part = np.arange(leaf.shape[dimension])[part]
        if isinstance(part, np.ndarray | np.generic | list):
            array = np.array(part, dtype=np.int64 if isinstance(part, list) and not part else None)
            part = torch.as_tensor(array, device="cpu")
        adapted.append(part)
        dimension += part is not None
    return tuple(adapted)


def taken(name: str, leaf: Any, index: Any) -> Any:
    """Rows of a leaf (a view where numpy or torch gives one); None stays None.

    Raises:
        IndexError: outside the leaf, or the leaf has no rows.
    """
    if isinstance(leaf, np.ndarray):
        if leaf.ndim == 0 and index is not None and index is not Ellipsis:
            raise IndexError(f"{name} ({leaf}) must have rows to be indexed; got a scalar")
        return leaf[numpy_index(index)]
    if leaf is None:
        return None
    if isinstance(leaf, Tensor):
        return leaf[torch_index(index, leaf)]
    raise IndexError(f"{name} ({leaf!r}) must have rows to be indexed; got {type(leaf).__name__}")


def fitted(name: str, leaf: Any, index: Any, value: Any) -> Any:
    """`value` as it can be written to `leaf[index]` without failing.

    Raises:
        ValueError: it does not fit in shape or kind.
        IndexError: outside the leaf.
    """
    if not has_rows(leaf):
        raise ValueError(f"{name} ({leaf!r}) must have rows to be written to; got {type(leaf).__name__}")
    place = taken(name, leaf, index)
    shape = tuple(getattr(place, "shape", ()))
    try:
        if isinstance(leaf, Tensor):
            ready: Any = torch.as_tensor(value, dtype=leaf.dtype, device=leaf.device)
        elif leaf.dtype == object and not isinstance(value, np.ndarray):
            return value
        else:
            ready = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value).astype(leaf.dtype)
        fits = np.broadcast_shapes(tuple(ready.shape), shape) == shape
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be written with what fits {leaf.dtype} {list(shape)}; {error}") from error
    if not fits:
        raise ValueError(f"{name} must be written with shape {list(shape)}; got {list(ready.shape)}")
    return ready


def blank_like(leaf: Any) -> Any:
    """Zeros, or None for objects, in the form of `leaf`."""
    if isinstance(leaf, Tensor):
        return torch.zeros_like(leaf)
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in NUMERIC_KINDS:
        return np.zeros_like(leaf)
    return np.full_like(leaf, None) if isinstance(leaf, np.ndarray) else None


def blanked(leaf: Any) -> Any:
    """What rows of `leaf` are reset to: 0, or None for objects."""
    return None if isinstance(leaf, np.ndarray) and leaf.dtype.kind not in NUMERIC_KINDS else 0


def same(one: Any, other: Any) -> bool:
    """Equal content: dtype, shape and values, numpy or torch alike; NaN equals NaN."""
    arrays = [
        value.detach().cpu().numpy() if isinstance(value, Tensor) else value
        for value in (one, other)
        if isinstance(value, np.ndarray | np.generic | Tensor)
    ]
    if len(arrays) == 1:
        return False
    if not arrays:
        return bool(type(one) is type(other) and one == other)
    left, right = arrays
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return bool(np.array_equal(left, right, equal_nan=left.dtype.kind in "fc"))
