"""The columnar storage: one preallocated tensor per leaf, a ring of fixed layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from replay_service.buffer.columns import Column, allocate, allocate_to_fill
from replay_service.buffer.counts import positive_integer
from replay_service.buffer.generations import Generations
from replay_service.buffer.index import Index, as_slots, is_single
from replay_service.buffer.lanes import records_at, records_of
from replay_service.buffer.persist.checkpointers.base import StorageCheckpointerBase
from replay_service.buffer.persist.checkpointers.tensor import TensorStorageCheckpointer
from replay_service.buffer.storages.base import Batch
from replay_service.buffer.storages.column_state import ColumnState
from replay_service.buffer.storages.cursor import require_rows, target_slots
from replay_service.buffer.table import Table
from replay_service.errors import LayoutError, key_name
from replay_service.specs import Key, Spec, narrowed
from replay_service.structure import Leaf, Rows, build, flatten_rows, folded, row_of

__all__ = ["LazyTensorStorage"]


class LazyTensorStorage(ColumnState):
    """Records in preallocated memory; the first batch fixes the layout.

    Args:
        max_size: capacity in records (with `ndim` > 1: records of all lanes together).
        device: where the columns live.
        ndim: leading dimensions that name a record: the first is time, the others are lanes.
        compilable, consolidated, shared_init, cleanup_memmap: accepted for drop-in use. Rows always leave in one piece, and sharing is
            asked for by the buffer (`shared=True`).

    Raises:
        TypeError, ValueError: `max_size` or `ndim` is not a positive integer.
    """

    columnar = True

    def __init__(
        self,
        max_size: int,
        *,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        compilable: bool = False,
        consolidated: bool = False,
        shared_init: bool = False,
        cleanup_memmap: bool = True,
    ) -> None:
        super().__init__(max_size, None, compilable)
        self.ndim = positive_integer(ndim, "ndim")
        self.device = torch.device("cpu" if device == "auto" else device)
        self._table: Table | None = None
        self._filled = 0
        self._epoch = 0
        self._is_shared = False
        # Known from the first batch on; until that is written they are those of the batch that was prepared last.
        self._lane_shape: tuple[int, ...] = (0,) * (self.ndim - 1)

    # -- shape ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._filled * self.lanes

    @property
    def filled(self) -> int:
        """Filled slots along the first dimension."""
        return self._filled

    @property
    def lanes(self) -> int:
        """Records per slot; 1 until the first batch of a storage with `ndim` > 1 came."""
        return math.prod(self._lane_shape) if self._table is not None else 1

    @property
    def slots(self) -> int:
        """Capacity along the first dimension."""
        return -(-self.max_size // self.lanes)

    @property
    def shape(self) -> torch.Size:
        """Capacity per dimension: `[slots, *lanes]`, 0 for lanes that are not known yet."""
        lanes = self._lane_shape if self._table is not None else (0,) * (self.ndim - 1)
        return torch.Size([self.slots, *lanes])

    @property
    def initialized(self) -> bool:
        """Whether the layout is fixed."""
        return self._table is not None

    def leaves(self) -> tuple[Leaf, ...] | None:
        """The layout, or None before the first batch."""
        return None if self._table is None else self._table.leaves

    def spec(self) -> Spec | None:
        """How a flat batch of records `[n]` is put together, or None before the first batch."""
        return None if self._table is None else narrowed(self._table.spec, self.ndim - 1)

    def column(self, key: str | Key) -> Tensor:
        """The stored column `[slots(, *lanes), *shape]` under `key`, a view."""
        column = self._filled_table().column(key)
        return column.tensor.view(*self.shape, *column.leaf.shape)

    def flat_slots(self, index: Index) -> Tensor:
        """Flat record numbers int64 `[n]`; with lanes, `index` is a tuple of coordinates, a `[n, ndim]` tensor, or whole slots."""
        return as_slots(index, self._filled) if self.ndim == 1 else self._records_at(index).reshape(-1)

    def coordinates(self, records: Tensor) -> tuple[Tensor, ...]:
        """Coordinates (slot, *lane) of flat record numbers."""
        return (records,) if self.ndim == 1 else torch.unravel_index(records, self.shape)

    def all_cells(self, slots: Tensor) -> Tensor:
        """Coordinates int64 `[n * lanes, ndim]` of every record in `slots`."""
        return torch.stack(self.coordinates(records_of(slots, self.lanes)), 1)

    def lanes_of(self, batch: Batch) -> int:
        """Records per slot of the batch that was prepared last."""
        return math.prod(self._lane_shape)

    # -- writing ----------------------------------------------------------------------------------------------------

    def prepare(self, data: Any) -> Rows:
        """Validated rows `[n * lanes]` in the storage's own order of leaves."""
        if isinstance(data, Rows) and data.checked:
            return data
        rows = data if isinstance(data, Rows) else flatten_rows(data, leading=self.ndim)
        return self._checked(self._without_lanes(rows) if self.ndim > 1 else rows)

    def prepare_one(self, data: Any) -> Rows:
        """Validated rows of one record (with lanes: of one slot)."""
        rows = row_of(data)
        return self._checked(self._without_lanes(rows) if self.ndim > 1 else rows)

    def set(self, cursor: Index, data: Any, *, set_cursor: bool = True) -> None:
        """Writes records into the slots `cursor`; raw data is validated first.

        Raises:
            LayoutError: the data does not fit what is stored, or has another number of rows than `cursor` names.
            IndexError: a slot outside the storage, behind a gap, or (without `set_cursor`) that is not filled.
        """
        if not set_cursor:
            self._overwrite(cursor, data)
            return
        single = not isinstance(cursor, range) and is_single(cursor)
        rows = self.prepare_one(data) if single and not isinstance(data, Rows) else self.prepare(data)
        lanes = self.lanes_of(rows)
        capacity = -(-self.max_size // max(1, lanes))
        start, stop, slots = target_slots(cursor, self._filled, capacity)
        require_rows(rows, (stop - start if slots is None else slots.numel()) * lanes)
        if rows.count == 0:
            return
        table = self._table or self._allocated(rows, capacity * lanes)
        if slots is None:
            table.write(start * lanes, rows)
        else:
            table.write_at(records_of(slots, lanes), rows)
        self._table = table
        self._filled = max(self._filled, stop)

    def write_cells(self, key: str | Key, values: Tensor, cells: Tensor) -> None:
        """Writes `values` `[n, *shape]` into one column at the flat records `cells` int64 `[n]` (validated here, before the write)."""
        column = self._filled_table().column(key)
        leaf = column.leaf
        if values.dtype != leaf.dtype or values.shape != (cells.numel(), *leaf.shape):
            raise LayoutError(
                f"{key_name(leaf.key)} must be {str(leaf.dtype).removeprefix('torch.')}{[cells.numel(), *leaf.shape]}; "
                f"got {str(values.dtype).removeprefix('torch.')}{list(values.shape)}"
            )
        Table([column], "t").write_at(cells, Rows([leaf.key], [values], "t", cells.numel()))

    def add_columns(self, rows: Rows) -> None:
        """New columns, filled from `rows` `[n, *shape]` for the first `n` records and with zeros behind.

        Raises:
            LayoutError: a key lies under a tensor or names a level that holds others, or a bare tensor is stored.
        """
        table = self._filled_table()
        fresh = self._new_columns(rows.leaves(), table.records)
        widened = table.with_columns(fresh)
        for column, tensor in zip(fresh, rows.tensors, strict=True):
            column.write(0, tensor)
        self._table = widened

    def empty(self) -> None:
        """Forgets all records; memory and layout stay."""
        self._filled = 0
        self._epoch += 1
        if self._generations is not None:
            self._generations.advance_written()

    # -- reading ----------------------------------------------------------------------------------------------------

    def get(self, index: Index) -> Any:
        """The records at `index` as copies: one record for an int, else a batch of the shape of `index` (with lanes: `[n, *lanes]`)."""
        if self._table is None:
            raise IndexError("index must name a filled row; got an empty storage")
        picked = self._records_at(index)
        tensors = self._table.gathered(picked.reshape(-1))
        if picked.ndim != 1:
            tensors = [tensor.view((*picked.shape, *tensor.shape[1:])) for tensor in tensors]
        return build(narrowed(self._table.spec, self.ndim - picked.ndim), tensors, tuple(picked.shape))

    def flatten(self) -> LazyTensorStorage:
        """A storage with one dimension over the same memory: record `i` of it is the one with the flat number `i`."""
        if self.ndim == 1:
            return self
        flat = LazyTensorStorage(self.slots * self.lanes, device=self.device)
        if self._table is not None:
            flat._table = Table(self._table.columns, narrowed(self._table.spec, self.ndim - 1))
            flat._filled = len(self)
        return flat

    def read_into(self, slots: Tensor, outs: Sequence[Tensor]) -> None:
        """Gathers flat records `slots` int64 `[n]` into `outs`."""
        self._filled_table().read_into(slots, outs)

    # -- sharing ----------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """How often the storage was emptied."""
        return self._epoch

    def share(self) -> None:
        """Moves the columns, also those to come, and the stamps to memory that processes started from this one see."""
        if self.device.type != "cpu":
            super().share()
        self._is_shared = True
        if self._table is not None:
            self._table = self._table.shared()
        if self._generations is not None:
            self._generations.share()

    def track_generations(self) -> Generations:
        """The write counters; shared where the columns are."""
        stamps = super().track_generations()
        if self._is_shared:
            stamps.share()
        return stamps

    def catch_up(self, filled: int, epoch: int) -> None:
        """Takes over how many slots another process filled, and how often it emptied them."""
        self._filled, self._epoch = filled, epoch

    def default_checkpointer(self) -> StorageCheckpointerBase:
        """Columns as they are, in blocks."""
        return TensorStorageCheckpointer()

    def size_bytes(self) -> int:
        """Bytes of all columns, filled or not."""
        return 0 if self._table is None else self._table.size_bytes

    # -- inner ------------------------------------------------------------------------------------------------------

    def _filled_table(self) -> Table:
        if self._table is None:
            raise KeyError("key must name a stored column; got an empty storage")
        return self._table

    def _records_at(self, index: Index) -> Tensor:
        lanes = self._lane_shape if self._table is not None else (0,) * (self.ndim - 1)
        return records_at(index, self._filled, lanes)

    def _overwrite(self, index: Index, data: Any) -> None:
        """Writes records that are filled already, slots or single cells."""
        picked = self._records_at(index)
        if isinstance(data, Rows) and data.checked:
            rows = data
        elif picked.ndim == 0:
            rows = self._checked(data if isinstance(data, Rows) else row_of(data))
        else:
            raw = data if isinstance(data, Rows) else flatten_rows(data, leading=picked.ndim)
            rows = self._checked(folded(raw, tuple(picked.shape)))
        require_rows(rows, picked.numel())
        if rows.count:
            self._filled_table().write_at(picked.reshape(-1), rows)

    def _without_lanes(self, rows: Rows) -> Rows:
        """Folds `[n, *lanes, *shape]` to `[n * lanes, *shape]`."""
        lanes = self._lane_shape if self._table is not None else tuple(rows.tensors[0].shape[1 : self.ndim])
        flat = folded(rows, (rows.count, *lanes))
        self._lane_shape = lanes
        return flat

    def _checked(self, rows: Rows) -> Rows:
        if self._table is not None:
            return self._table.checked(rows)
        return Rows(rows.keys, rows.tensors, rows.spec, rows.count, checked=True)

    def _allocated(self, rows: Rows, records: int) -> Table:
        return Table(self._new_columns(rows.leaves(), records), rows.spec)

    def _new_columns(self, leaves: Sequence[Leaf], records: int) -> list[Column]:
        """Columns for records to come, where this storage keeps its own."""
        columns = allocate(leaves, records, self.device)
        return [column.shared() for column in columns] if self._is_shared else columns

    def _columns_to_fill(self, leaves: Sequence[Leaf], records: int, filled: int) -> list[Column]:
        """As `_new_columns`, whose first `filled` records are written next."""
        if self._is_shared or self.device.type != "cpu":
            return self._new_columns(leaves, records)
        return allocate_to_fill(leaves, records, filled)
