"""Numbers on their way into a column of another type: as arrays, and whether they fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["array_of", "castable", "in_range", "tensor_in_range"]

Array = NDArray[Any]
NUMBERS = "biufc"


def array_of(rows: Any) -> Array:
    """`rows` as an array; of a tensor whose numbers NumPy has no type for, in float32."""
    if not isinstance(rows, Tensor):
        return np.asarray(rows)
    try:
        return rows.numpy(force=True)
    except TypeError:  # bfloat16 and smaller ones
        return rows.float().numpy(force=True)


def in_range(array: Array, stored: np.dtype[Any]) -> bool:
    """Whether a cast keeps the whole part of every number; what is cast to floating point may become infinite."""
    if stored.kind not in "biu" or not array.size or np.can_cast(array.dtype, stored):
        return True
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return False
    least, most = (0, 1) if stored.kind == "b" else (np.iinfo(stored).min, np.iinfo(stored).max)
    return stored.kind == "b" or bool(int(array.min()) >= least and int(array.max()) <= most)


def tensor_in_range(tensor: Tensor, stored: torch.dtype) -> bool:
    """As `in_range`."""
    if stored.is_floating_point or stored.is_complex or not tensor.numel() or tensor.dtype == torch.bool:
        return True
    # In a type that torch computes with, of which the small unsigned ones are none.
    numbers = tensor.double() if tensor.is_floating_point() else tensor.to(torch.int64)
    if tensor.is_floating_point() and not bool(numbers.isfinite().all()):
        return False
    if stored == torch.bool:
        return True
    limits = torch.iinfo(stored)
    return int(numbers.min()) >= limits.min and int(numbers.max()) <= limits.max


def castable(given: np.dtype[Any], stored: np.dtype[Any]) -> bool:
    """Whether numbers may be cast, with loss of digits: a float into integers, but nothing complex into real numbers."""
    if given.kind not in NUMBERS or stored.kind not in NUMBERS:
        return bool(np.can_cast(given, stored, "same_kind"))
    return stored.kind == "c" or given.kind != "c"
