"""Reading and writing records in place: everything that names records by index instead of drawing or appending them.

Functions on the parts of a buffer; the caller holds the buffer's lock. Batches are time first.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from replay_service.buffer.index import Index
from replay_service.buffer.storages.base import Storage
from replay_service.errors import LayoutError
from replay_service.specs import Key
from replay_service.structure import Rows, flatten_rows, folded

__all__ = ["first_slots", "update_records", "write_column", "write_first"]


def first_slots(storage: Storage, end: int | None) -> range:
    """The leading `end` filled slots (all for None).

    Raises:
        ValueError: `end` is negative or beyond what is filled.
    """
    if end is None:
        return range(storage.filled)
    if isinstance(end, bool) or not isinstance(end, int) or not 0 <= end <= storage.filled:
        raise ValueError(f"end ({end!r}) must be in [0, {storage.filled}], the number of filled slots")
    return range(end)


def write_first(storage: Storage, data: Any, end: int | None) -> range:
    """Overwrites the leading filled slots with `data`; named entries that are not stored yet become new columns.

    Everything is validated before the first write.

    Raises:
        LayoutError: `data` has another number of rows, an entry differs in dtype or row shape, or a new one has no place.
    """
    target = first_slots(storage, end)
    known = {leaf.key for leaf in storage.leaves() or ()}
    if not storage.columnar or not known:
        storage.set(target, data, set_cursor=False)
        return target
    raw = data if isinstance(data, Rows) else flatten_rows(data, leading=storage.ndim)
    is_new = [key not in known for key in raw.keys]
    stored = storage.prepare(_selected(raw, [not new for new in is_new]))
    if raw.count != len(target):
        raise LayoutError(f"data ({raw.count} rows) must have one row per slot; got {len(target)} slots")
    if any(is_new):
        # This refuses keys that have no place; nothing is written before.
        storage.add_columns(folded(_selected(raw, is_new), (raw.count, *storage.shape[1:])))
        stored = storage.prepare(raw)
    storage.set(target, stored, set_cursor=False)
    return target


def write_column(storage: Storage, key: str | Key, value: Any, index: Index, dim: int = 0) -> Tensor:
    """Writes `value` `[n, *shape]` (or one row, for every record) into one column at `index`; returns the flat records.

    A value with all dimensions of the storage has time at `dim`.

    Raises:
        LayoutError: another dtype (Python numbers take the column's), row shape or number of rows.
        KeyError: no such column.
    """
    _require_columns(storage, "set_at_")
    cells = storage.flat_slots(index)
    column = storage.column(key)
    shape = column.shape[storage.ndim :]
    values = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=column.dtype, device="cpu")
    if values.shape == shape:
        values = values.expand(cells.numel(), *shape)
    elif values.ndim == storage.ndim + len(shape):
        values = values.transpose(0, dim)
    if values.ndim > len(shape) + 1 and values.shape[values.ndim - len(shape) :] == shape:
        values = values.reshape(math.prod(values.shape[: values.ndim - len(shape)]), *shape)
    storage.write_cells(key, values, cells)
    return cells


def update_records(storage: Storage, given: Any, keys: list[Key] | None) -> Tensor:
    """Overwrites the stored entries that `given` `[filled, …]` names (only `keys`, if any); returns the flat records.

    All entries are validated before the first is written.

    Raises:
        LayoutError: an entry differs in dtype, row shape or number of rows.
        KeyError: an entry that is not stored.
    """
    _require_columns(storage, "update_")
    raw = flatten_rows(given, leading=storage.ndim)
    rows = folded(raw, (raw.count, *storage.shape[1:]))
    cells = torch.arange(len(storage), device="cpu")
    chosen = _selected(rows, [keys is None or any(key[: len(part)] == part for part in keys) for key in rows.keys])
    leaves = {leaf.key: leaf for leaf in storage.leaves() or ()}
    for found in chosen.leaves():
        leaf = leaves.get(found.key)
        if leaf is None:
            storage.column(found.key)  # raises the KeyError that lists what exists
        elif leaf != found or rows.count != cells.numel():
            raise LayoutError(f"data must fit {leaf} for {cells.numel()} rows; got {found} for {rows.count}")
    for key, tensor in zip(chosen.keys, chosen.tensors, strict=True):
        storage.write_cells(key, tensor, cells)
    return cells


def _selected(rows: Rows, wanted: list[bool]) -> Rows:
    places = [place for place, is_wanted in enumerate(wanted) if is_wanted]
    return Rows([rows.keys[i] for i in places], [rows.tensors[i] for i in places], ("selected", ()), rows.count)


def _require_columns(storage: Storage, call: str) -> None:
    if not storage.columnar:
        raise TypeError(f"{call} must have a columnar storage; got {type(storage).__name__}: use buffer[index] = data")
