"""The columnar storage: one preallocated tensor per leaf, a ring of fixed layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from replay_service.buffer.columns import Column, allocate
from replay_service.buffer.index import Index, as_slots, is_single, last_of_duplicates
from replay_service.buffer.storages.base import Batch, Storage
from replay_service.errors import LayoutError, key_name
from replay_service.specs import Key, Spec, keys_of, narrowed, with_leaf
from replay_service.structure import Leaf, Rows, build, flatten_rows, row_of

__all__ = ["LazyTensorStorage"]


class LazyTensorStorage(Storage):
    """Records in preallocated memory; the first batch fixes the layout.

    Args:
        max_size: capacity in records (with `ndim` > 1: records of all lanes together).
        device: where the columns live.
        ndim: leading dimensions that name a record: the first is time, the others are lanes.
        compilable, consolidated, shared_init, cleanup_memmap: accepted for drop-in use. Rows always leave in one piece, and sharing is
            asked for by the buffer (`shared=True`).

    Raises:
        ValueError: `max_size` or `ndim` is not a positive integer.
    """

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
        if isinstance(ndim, bool) or not isinstance(ndim, int) or ndim < 1:
            raise ValueError(f"ndim ({ndim!r}) must be a positive integer")
        self.ndim = ndim
        self.device = torch.device("cpu" if device == "auto" else device)
        self._columns: list[Column] = []
        self._places: dict[Key, int] = {}
        self._spec: Spec | None = None
        self._lane_shape: tuple[int, ...] = () if ndim == 1 else (0,) * (ndim - 1)
        self._filled = 0

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
        return math.prod(self._lane_shape) if self._columns else 1

    @property
    def slots(self) -> int:
        """Capacity along the first dimension."""
        return -(-self.max_size // self.lanes)

    @property
    def shape(self) -> torch.Size:
        """Capacity per dimension: `[slots, *lanes]`."""
        return torch.Size([self.slots, *self._lane_shape])

    @property
    def initialized(self) -> bool:
        """Whether the layout is fixed."""
        return bool(self._columns)

    def leaves(self) -> tuple[Leaf, ...] | None:
        """The layout, or None before the first batch."""
        return tuple(column.leaf for column in self._columns) if self._columns else None

    def spec(self) -> Spec | None:
        """How a flat batch of records `[n]` is put together, or None before the first batch."""
        return self._spec if self.ndim == 1 or self._spec is None else narrowed(self._spec, self.ndim - 1)

    def column(self, key: str | tuple[str, ...]) -> Tensor:
        """The stored column `[slots(, *lanes), *shape]` under `key`, a view."""
        column = self._column(key)
        return column.tensor.view(*self.shape, *column.leaf.shape)

    def flat_slots(self, index: Index) -> Tensor:
        """Flat record numbers int64 `[n]`; with lanes, `index` is a tuple of coordinates, a `[n, ndim]` tensor, or whole slots."""
        if self.ndim == 1:
            return as_slots(index, self._filled)
        if isinstance(index, Tensor) and index.ndim == 2 and index.shape[1] == self.ndim and index.dtype == torch.int64:
            index = tuple(index.unbind(1))
        if isinstance(index, tuple):
            grid = torch.arange(self._filled * self.lanes).view(self._filled, *self._lane_shape)
            try:
                return grid[index].reshape(-1)
            except IndexError as error:
                raise IndexError(f"index must be inside [{self._filled}, {', '.join(map(str, self._lane_shape))}]; {error}") from None
        slots = as_slots(index, self._filled)
        return (slots[:, None] * self.lanes + torch.arange(self.lanes)).reshape(-1)

    def coordinates(self, records: Tensor) -> tuple[Tensor, ...]:
        """Coordinates (slot, *lane) of flat record numbers."""
        return (records,) if self.ndim == 1 else torch.unravel_index(records, self.shape)

    def all_cells(self, slots: Tensor) -> Tensor:
        """Coordinates int64 `[n * lanes, ndim]` of every record in `slots`."""
        records = (slots[:, None] * self.lanes + torch.arange(self.lanes)).reshape(-1)
        return torch.stack(self.coordinates(records), 1)

    def lanes_of(self, batch: Batch) -> int:
        """Records per slot of a prepared batch."""
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
        """Writes records into the slots `cursor`; raw data is validated first."""
        single = is_single(cursor) if not isinstance(cursor, range) else False
        rows = self.prepare_one(data) if single and not isinstance(data, Rows) else self.prepare(data)
        if not self._columns:
            self._allocate(rows)
        start, stop, slots = self._target(cursor, single, set_cursor)
        expected = (stop - start if slots is None else slots.numel()) * self.lanes
        if rows.count != expected:
            raise LayoutError(f"data ({rows.count} rows) must have one row per slot; got {expected} slots")
        if slots is None:
            for column, tensor in zip(self._columns, rows.tensors, strict=True):
                column.write(start * self.lanes, tensor)
        else:
            self._scatter(slots, rows)
        if set_cursor:
            self._filled = max(self._filled, stop)

    def _target(self, cursor: Index, single: bool, set_cursor: bool) -> tuple[int, int, Tensor | None]:
        """`(start, stop, None)` for contiguous slots, `(0, highest + 1, slots)` for scattered ones."""
        limit = self.slots if set_cursor else self._filled
        if isinstance(cursor, range) and cursor.step == 1 and 0 <= cursor.start <= cursor.stop <= limit:
            return cursor.start, cursor.stop, None
        if single:
            slot = int(as_slots(int(cursor), limit)[0])
            return slot, slot + 1, None
        if self.ndim > 1 and isinstance(cursor, tuple):
            raise TypeError("cursor must name whole slots; write single cells of a storage with lanes through set_at_")
        slots = as_slots(cursor, limit)
        return 0, int(slots.max()) + 1 if slots.numel() else 0, slots

    def _scatter(self, slots: Tensor, rows: Rows) -> None:
        if self.lanes > 1:
            slots = (slots[:, None] * self.lanes + torch.arange(self.lanes)).reshape(-1)
        winners = last_of_duplicates(slots)
        for column, tensor in zip(self._columns, rows.tensors, strict=True):
            if winners is None:
                column.write_at(slots, tensor)
            else:
                column.write_at(slots[winners], tensor[winners.to(tensor.device)])

    def write_cells(self, key: str | tuple[str, ...], values: Tensor, cells: Tensor) -> None:
        """Writes `values` `[n, *shape]` into one column at the flat records `cells` int64 `[n]` (validated here, before the write)."""
        column = self._column(key)
        leaf = column.leaf
        if values.dtype != leaf.dtype or tuple(values.shape[1:]) != leaf.shape or values.shape[0] != cells.numel():
            raise LayoutError(
                f"{key_name(leaf.key)} must be {str(leaf.dtype).removeprefix('torch.')}{[cells.numel(), *leaf.shape]}; "
                f"got {str(values.dtype).removeprefix('torch.')}{list(values.shape)}"
            )
        winners = last_of_duplicates(cells)
        if winners is not None:
            cells, values = cells[winners], values[winners.to(values.device)]
        column.write_at(cells, values)

    def add_column(self, key: Key, rows: Tensor) -> None:
        """A new column, filled from `rows` `[n, *shape]` for the first `n` records and with zeros behind."""
        if self._spec is None or self._spec == "t":
            raise LayoutError(f"{key_name(key)} must be added to named columns; this storage holds a bare tensor")
        leaf = Leaf(key, rows.dtype, tuple(rows.shape[1:]))
        column = allocate([leaf], self.slots * self.lanes, self.device)[0]
        column.write(0, rows)
        spec = with_leaf(self._spec, key)
        order = keys_of(spec)
        columns = {known.leaf.key: known for known in [*self._columns, column]}
        self._adopt([columns[name] for name in order], spec)

    def empty(self) -> None:
        """Forgets all records; memory and layout stay."""
        self._filled = 0
        if self._generations is not None:
            self._generations.advance_written()

    # -- reading ----------------------------------------------------------------------------------------------------

    def get(self, index: Index) -> Any:
        """The records at `index` as copies: one record for an int, else a batch `[n, …]`."""
        if self._spec is None:
            raise IndexError("index must name a filled row; got an empty storage")
        single = is_single(index) if not isinstance(index, range) else False
        cells = self.flat_slots(index)
        tensors = [column.gathered(cells) for column in self._columns]
        if self.ndim == 1:
            return self._built(tensors, () if single else (cells.numel(),), 1 if single else 0)
        if isinstance(index, tuple) or (isinstance(index, Tensor) and index.ndim == 2):
            return self._built(tensors, (cells.numel(),), self.ndim - 1)
        batch = self._lane_shape if single else (cells.numel() // self.lanes, *self._lane_shape)
        return self._built([t.view(*batch, *t.shape[1:]) for t in tensors], batch, 1 if single else 0)

    def _built(self, tensors: list[Tensor], batch: tuple[int, ...], fewer_dims: int) -> Any:
        if batch == () and self.ndim == 1:
            tensors = [tensor[0] for tensor in tensors]
        return build(narrowed(self._spec or "t", fewer_dims), tensors, batch)

    def read_into(self, slots: Tensor, outs: Sequence[Tensor]) -> None:
        """Gathers flat records `slots` int64 `[n]` into `outs`."""
        for column, out in zip(self._columns, outs, strict=True):
            column.gather(slots, out)

    # -- persistence and sharing ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Copies of the filled part of every column, with the layout that names them."""
        used = self._filled * self.lanes
        return {
            "spec": self._spec,
            "keys": [column.leaf.key for column in self._columns],
            "columns": [column.tensor[:used].clone() for column in self._columns],
            "lane_shape": self._lane_shape,
            "filled": self._filled,
            "generations": None if self._generations is None else self._generations.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a state over by copy; the capacity stays this storage's own.

        Raises:
            LayoutError: the state has other columns than this storage, or more slots than it can hold.
        """
        leaves = [
            Leaf(tuple(key), column.dtype, tuple(column.shape[1:]))
            for key, column in zip(state_dict["keys"], state_dict["columns"], strict=True)
        ]
        lane_shape = tuple(state_dict["lane_shape"])
        capacity = -(-self.max_size // max(1, math.prod(lane_shape)))
        if state_dict["filled"] > capacity:
            raise LayoutError(f"max_size ({self.max_size}) must hold the saved {state_dict['filled']} slots")
        if self._columns and [column.leaf for column in self._columns] != leaves:
            saved, own = ", ".join(map(str, leaves)), ", ".join(str(column.leaf) for column in self._columns)
            raise LayoutError(f"saved layout ({saved}) must be the layout of this storage ({own})")
        if not self._columns and leaves:
            self._lane_shape = lane_shape
            self._adopt(allocate(leaves, capacity * max(1, math.prod(lane_shape)), self.device), state_dict["spec"])
        for column, saved_column in zip(self._columns, state_dict["columns"], strict=True):
            column.tensor[: saved_column.shape[0]].copy_(saved_column)
        self._filled = state_dict["filled"]
        if state_dict["generations"] is not None:
            self.track_generations().load_state_dict(state_dict["generations"])

    def size_bytes(self) -> int:
        """Bytes of all columns, filled or not."""
        return sum(column.tensor.nbytes for column in self._columns)

    # -- inner ------------------------------------------------------------------------------------------------------

    def _column(self, key: str | tuple[str, ...]) -> Column:
        wanted = (key,) if isinstance(key, str) else tuple(key)
        place = self._places.get(wanted)
        if place is None:
            known = [key_name(column.leaf.key) for column in self._columns]
            raise KeyError(f"key ({key_name(wanted)}) must be one of {known}")
        return self._columns[place]

    def _without_lanes(self, rows: Rows) -> Rows:
        """Folds `[n, *lanes, *shape]` to `[n * lanes, *shape]`."""
        lane_shape = self._lane_shape if self._columns else tuple(rows.tensors[0].shape[1 : self.ndim])
        for key, tensor in zip(rows.keys, rows.tensors, strict=True):
            if tensor.ndim < self.ndim or tuple(tensor.shape[1 : self.ndim]) != lane_shape:
                raise LayoutError(
                    f"{key_name(key) or 'data'} must have lanes {list(lane_shape)} after the first dimension; "
                    f"got shape {list(tensor.shape)}"
                )
        self._lane_shape = lane_shape
        tensors = [tensor.reshape(-1, *tensor.shape[self.ndim :]) for tensor in rows.tensors]
        return Rows(rows.keys, tensors, rows.spec, tensors[0].shape[0])

    def _checked(self, rows: Rows) -> Rows:
        if not self._columns:
            return Rows(rows.keys, rows.tensors, rows.spec, rows.count, checked=True)
        if rows.spec == self._spec:
            ordered = rows.tensors
        else:
            ordered = self._ordered(rows)
        for column, tensor in zip(self._columns, ordered, strict=True):
            leaf = column.leaf
            if tensor.dtype != leaf.dtype or tuple(tensor.shape[1:]) != leaf.shape:
                raise LayoutError(
                    f"{key_name(leaf.key) or 'data'} must be {str(leaf.dtype).removeprefix('torch.')} with row shape "
                    f"{list(leaf.shape)}; got {str(tensor.dtype).removeprefix('torch.')} with {list(tensor.shape[1:])}"
                )
        return Rows([column.leaf.key for column in self._columns], ordered, self._spec or "t", rows.count, checked=True)

    def _ordered(self, rows: Rows) -> list[Tensor]:
        """The tensors in the order of the columns: the same keys may come in any order."""
        given = dict(zip(rows.keys, rows.tensors, strict=True))
        missing = [key_name(key) or "data" for key in self._places if key not in given]
        extra = [key_name(key) or "data" for key in given if key not in self._places]
        if missing or extra:
            found = [text for text in (missing and f"missing {missing}", extra and f"extra {extra}") if text]
            known = [key_name(key) or "data" for key in self._places]
            raise LayoutError(f"keys must be {known}; got {' and '.join(found)}")
        return [given[key] for key in self._places]

    def _allocate(self, rows: Rows) -> None:
        lanes = max(1, math.prod(self._lane_shape))
        slots = -(-self.max_size // lanes) * lanes
        self._adopt(self._new_columns(rows.leaves(), slots), rows.spec)

    def _new_columns(self, leaves: Sequence[Leaf], slots: int) -> list[Column]:
        return allocate(leaves, slots, self.device)

    def _adopt(self, columns: list[Column], spec: Spec | None) -> None:
        self._columns = columns
        self._places = {column.leaf.key: place for place, column in enumerate(columns)}
        self._spec = spec
