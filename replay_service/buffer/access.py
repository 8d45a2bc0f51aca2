"""Reading and writing records in place: everything that names records by index instead of drawing or appending them.

Functions on the parts of a buffer; the caller holds the buffer's lock.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from replay_service.buffer.index import Index
from replay_service.buffer.storages.base import Storage
from replay_service.buffer.storages.lazy_tensor import LazyTensorStorage
from replay_service.errors import LayoutError
from replay_service.specs import Key
from replay_service.structure import Rows, flatten_rows

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

    Raises:
        LayoutError: `data` has another number of rows, or an entry differs in dtype or row shape.
    """
    target = first_slots(storage, end)
    if not isinstance(storage, LazyTensorStorage):
        storage.set(target, data, set_cursor=False)
        return target
    rows = data if isinstance(data, Rows) else flatten_rows(data, leading=storage.ndim)
    known = {leaf.key for leaf in storage.leaves() or ()}
    fresh = [place for place, key in enumerate(rows.keys) if key not in known]
    if not fresh or not known:
        storage.set(target, rows, set_cursor=False)
        return target
    if rows.count != len(target):
        raise LayoutError(f"data ({rows.count} rows) must have one row per slot; got {len(target)} slots")
    kept = [place for place in range(len(rows.keys)) if place not in fresh]
    stored = Rows([rows.keys[i] for i in kept], [rows.tensors[i] for i in kept], ("td", 1, ()), rows.count)
    prepared = storage.prepare(stored)
    storage.set(target, prepared, set_cursor=False)
    for place in fresh:
        tensor = rows.tensors[place]
        storage.add_column(rows.keys[place], tensor.reshape(-1, *tensor.shape[storage.ndim :]))
    return target


def write_column(storage: Storage, key: str | Key, value: Any, index: Index) -> Tensor:
    """Writes `value` `[n, *shape]` (or one row, for every record) into one column at `index`; returns the flat records."""
    if not isinstance(storage, LazyTensorStorage):
        raise TypeError(f"set_at_ must have a columnar storage; got {type(storage).__name__}")
    cells = storage.flat_slots(index)
    column = storage.column(key)
    shape = column.shape[storage.ndim :]
    values = torch.as_tensor(value)
    if values.shape == shape:
        values = values.expand(cells.numel(), *shape)
    elif values.ndim > len(shape) + 1:
        values = values.reshape(-1, *shape) if values.shape[values.ndim - len(shape) :] == shape else values
    storage.write_cells(key, values, cells)
    return cells


def update_records(storage: Storage, given: Any, keys: list[Key] | None) -> Tensor:
    """Overwrites the stored entries that `given` `[filled, …]` names (only `keys`, if any); returns the flat records.

    All entries are validated before the first is written.
    """
    if not isinstance(storage, LazyTensorStorage):
        raise TypeError(f"update_ must have a columnar storage; got {type(storage).__name__}")
    rows = flatten_rows(given, leading=storage.ndim)
    cells = torch.arange(len(storage))
    chosen = [
        (key, tensor.reshape(-1, *tensor.shape[storage.ndim :]))
        for key, tensor in zip(rows.keys, rows.tensors, strict=True)
        if keys is None or any(key[: len(wanted)] == wanted for wanted in keys)
    ]
    leaves = {leaf.key: leaf for leaf in storage.leaves() or ()}
    for key, tensor in chosen:
        leaf = leaves.get(key)
        if leaf is None:
            storage.column(key)  # raises the KeyError that lists what exists
        elif tensor.dtype != leaf.dtype or tuple(tensor.shape[1:]) != leaf.shape or tensor.shape[0] != cells.numel():
            raise LayoutError(f"data must fit {leaf} for {cells.numel()} rows; got {list(tensor.shape)} of {tensor.dtype}")
    for key, tensor in chosen:
        storage.write_cells(key, tensor, cells)
    return cells
