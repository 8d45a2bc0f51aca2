"""Cursors: the slots that a write goes to, checked before anything is written."""

from __future__ import annotations

import torch
from torch import Tensor

from replay_service.buffer.index import Index, as_slots
from replay_service.errors import LayoutError
from replay_service.structure import Rows

__all__ = ["require_rows", "target_slots"]


def target_slots(cursor: Index, filled: int, capacity: int) -> tuple[int, int, Tensor | None]:
    """Where a write that may grow the storage goes: `(start, stop, None)` for a run of slots, else `(0, stop, slots)`.

    Raises:
        IndexError: a slot outside the capacity, or behind a gap.
    """
    if isinstance(cursor, range) and cursor.step == 1 and 0 <= cursor.start <= filled:
        start, stop, slots = cursor.start, max(cursor.start, cursor.stop), None
    else:
        slots = as_slots(cursor, capacity)
        start, stop = 0, int(slots.max()) + 1 if slots.numel() else 0
        fresh = int((torch.unique(slots) >= filled).sum())
        if stop > filled + fresh:
            raise IndexError(f"cursor ({stop - 1}) must leave no gap; the next free slot is {filled}")
    if stop > capacity:
        raise IndexError(f"cursor ({stop - 1}) must be in [0, {capacity})")
    return start, stop, slots


def require_rows(rows: Rows, expected: int) -> None:
    """Checks that there is one row per slot.

    Raises:
        LayoutError: there are more or fewer.
    """
    if rows.count != expected:
        raise LayoutError(f"data ({rows.count} rows) must have one row per slot; got {expected} slots")
