"""Indices: whatever Python users index with, as int64 slots that are checked against what is filled."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from replay_service.arguments import index_array

__all__ = ["Index", "as_slots", "is_coordinates", "is_key", "is_single", "last_of_duplicates"]

Index: TypeAlias = Any
"""An int, slice, range, list, int64 tensor or array, or a bool mask; for storages with `ndim` > 1 also a tuple of coordinates."""


def is_single(index: Index) -> bool:
    """Whether `index` names one record rather than a batch of them."""
    if isinstance(index, bool):
        raise TypeError(
            f"index ({index}) must be an integer, a slice, or an array of integers or of flags; got one bool"
        )
    return isinstance(index, int | np.integer) or (isinstance(index, Tensor | np.ndarray) and index.ndim == 0)


def is_coordinates(index: Index, ndim: int) -> bool:
    """Whether `index` names single cells of a storage with lanes: a tuple of coordinates, or an integer tensor `[n, ndim]`."""
    if ndim == 1:
        return False
    stacked = isinstance(index, Tensor) and index.ndim == 2 and index.shape[1] == ndim and index.dtype != torch.bool
    return stacked or isinstance(index, tuple)


def is_key(index: Index) -> bool:
    """Whether `index` is the name of an entry, nested or not."""
    return isinstance(index, str) or (
        isinstance(index, tuple) and bool(index) and all(isinstance(i, str) for i in index)
    )


def as_slots(index: Index, size: int) -> Tensor:
    """Slots int64 `[n]` that `index` selects among `size` filled ones, in the order asked for.

    Negative numbers count from the end, as in a list.

    Raises:
        IndexError: a number outside `[-size, size)`, or a mask of another length.
        TypeError: something that is no index.
    """
    if isinstance(index, slice):
        return (
            torch.arange(size, device="cpu")[index]
            if (index.step or 1) > 0
            else torch.arange(size, device="cpu").flip(0)[_flipped(index, size)]
        )
    if index is Ellipsis:
        return torch.arange(size, device="cpu")
    if isinstance(index, range):
        index = list(index)
    slots = (index_array(index).reshape(1) if is_single(index) else index_array(index)).to("cpu")
    if slots.dtype == torch.bool:
        if slots.shape != (size,):
            raise IndexError(f"index (a mask of shape {list(slots.shape)}) must have one flag per row; got {size} rows")
        return slots.nonzero().squeeze(1)
    slots = slots.reshape(-1)
    if slots.numel():
        low, high = torch.aminmax(slots)
        if int(high) >= size or int(low) < -size:
            wrong = int(high) if int(high) >= size else int(low)
            raise IndexError(f"index ({wrong}) must be in [-{size}, {size}); the buffer holds {size} rows")
        if int(low) < 0:
            slots = torch.where(slots < 0, slots + size, slots)
    return slots


def last_of_duplicates(slots: Tensor) -> Tensor | None:
    """Positions of the entries that win when a slot is named several times (the last one); None if all slots differ."""
    if slots.numel() < 2:
        return None
    array = slots.numpy()
    _, first_from_end = np.unique(array[::-1], return_index=True)
    if first_from_end.size == array.size:
        return None
    return torch.from_numpy(np.sort(array.size - 1 - first_from_end))


def _flipped(part: slice, size: int) -> Tensor:
    positions = torch.tensor(list(range(*part.indices(size))), dtype=torch.int64, device="cpu")
    return size - 1 - positions
