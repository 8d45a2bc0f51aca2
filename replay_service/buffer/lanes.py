"""Lanes: records side by side in one slot. A record has coordinates (slot, *lane) and one flat number, slots first."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from replay_service.buffer.index import Index, as_slots, is_coordinates, is_single

__all__ = ["records_at", "records_of"]


def records_of(slots: Tensor, lanes: int) -> Tensor:
    """Flat numbers int64 `[n * lanes]` of all records in `slots` int64 `[n]`, slot by slot."""
    return slots if lanes == 1 else (slots[:, None] * lanes + torch.arange(lanes, device="cpu")).reshape(-1)


def records_at(index: Index, filled: int, lane_shape: tuple[int, ...]) -> Tensor:
    """Flat numbers int64 of the records that `index` names, in the shape of the batch it asks for (`()` for one record).

    Args:
        index: an integer or array of integers, a slice or a mask names slots, with all their lanes; a tuple of coordinates or a tensor
            `[n, ndim]` of them names single records.
        filled: filled slots.
        lane_shape: lanes per dimension after the first; `()` for storages without.

    Raises:
        IndexError: outside what is filled.
        TypeError: something that is no index.
    """
    if not lane_shape:
        slots = as_slots(index, filled)
        if isinstance(index, Tensor | np.ndarray) and index.ndim != 1 and slots.numel() == math.prod(index.shape):
            return slots.view(index.shape)
        return slots[0] if is_single(index) else slots
    lanes = math.prod(lane_shape)
    if not is_coordinates(index, 1 + len(lane_shape)):
        slots = as_slots(index, filled)
        picked = records_of(slots, lanes).view(slots.numel(), *lane_shape)
        return picked[0] if is_single(index) else picked
    parts = tuple(index.unbind(1)) if isinstance(index, Tensor) else index
    if len(parts) == 1 + len(lane_shape) and all(
        isinstance(part, Tensor) and part.dtype == torch.int64 for part in parts
    ):
        return _numbers_of(parts, (filled, *lane_shape))
    try:
        return torch.arange(filled * lanes, device="cpu").view(filled, *lane_shape)[parts]
    except (IndexError, TypeError) as error:
        inside = ", ".join(map(str, (filled, *lane_shape)))
        raise IndexError(f"index must be coordinates inside [{inside}]; {error}") from None


def _numbers_of(coordinates: tuple[Tensor, ...], shape: tuple[int, ...]) -> Tensor:
    """Flat numbers of coordinates, whose cost is that of the coordinates alone, not of the storage."""
    records = torch.zeros_like(coordinates[0])
    for coordinate, extent in zip(coordinates, shape, strict=True):
        if coordinate.shape != records.shape:
            raise IndexError(
                f"index (coordinates of shape {list(coordinate.shape)}) must have shape {list(records.shape)}"
            )
        slots = as_slots(coordinate, extent)
        records = records * extent + slots.view(records.shape)
    return records
