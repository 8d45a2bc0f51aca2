"""What a columnar storage is like at one moment, and how it takes such a moment over: by copies in memory, or from a checkpoint."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from replay_service.buffer.columns import Column
from replay_service.buffer.storages.base import Storage
from replay_service.buffer.table import Table
from replay_service.errors import LayoutError
from replay_service.sources import SOURCES
from replay_service.specs import Spec
from replay_service.structure import Leaf, Rows

__all__ = ["ColumnState"]


class ColumnState(Storage):
    """The part of a columnar storage that is saved and loaded."""

    watches_writes: bool = True
    """Whether every write to the columns comes through the storage, so that it can tell what changed since a save."""

    _table: Table | None = None
    _filled: int = 0
    _lane_shape: tuple[int, ...] = ()
    _is_shared: bool = False

    @abstractmethod
    def _new_columns(self, leaves: Sequence[Leaf], records: int) -> list[Column]:
        """Columns for records to come, where this storage keeps its own."""

    def _columns_to_fill(self, leaves: Sequence[Leaf], records: int, filled: int) -> list[Column]:
        """As `_new_columns`, whose first `filled` records are written next."""
        return self._new_columns(leaves, records)

    @property
    def table(self) -> Table | None:
        """The columns, for checkpointers; None before the first batch."""
        return self._table

    @property
    def lane_shape(self) -> tuple[int, ...]:
        """Lanes per dimension after the first."""
        return self._lane_shape

    @property
    def is_shared(self) -> bool:
        """Whether other processes may write to the columns, too."""
        return self._is_shared

    def state_dict(self) -> dict[str, Any]:
        """Copies of the filled part of every column, with the layout that names them."""
        columns = [] if self._table is None else self._table.columns
        used = self._filled * self.lanes
        return {
            "spec": None if self._table is None else self._table.spec,
            "keys": [column.leaf.key for column in columns],
            "columns": [column.tensor[:used].clone() for column in columns],
            "lane_shape": self._lane_shape,
            "filled": self._filled,
            "sources": [] if self._table is None else self._table.sources(used),
            "generations": None if self._generations is None else self._generations.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a state over by copy; the capacity stays this storage's own.

        Raises:
            LayoutError: the state has other columns or lanes than this storage, or more slots than it can hold.
        """
        saved: list[Tensor] = state_dict["columns"]
        SOURCES.add(state_dict.get("sources", ()))
        keys, filled = [tuple(key) for key in state_dict["keys"]], int(state_dict["filled"])
        table, lanes = None, tuple(state_dict["lane_shape"])
        if saved:
            leaves = [Leaf(key, column.dtype, tuple(column.shape[1:])) for key, column in zip(keys, saved, strict=True)]
            table = self.room_for(leaves, state_dict["spec"], lanes, filled)
            table.write(0, table.checked(Rows(keys, saved, ("saved", ()), saved[0].shape[0])))
        self.adopt(table, lanes, filled, state_dict["generations"])

    def room_for(self, leaves: Sequence[Leaf], spec: Spec, lane_shape: tuple[int, ...], filled: int) -> Table:
        """The columns that saved records would go to: this storage's own, or new ones that it has not taken over yet.

        Raises:
            LayoutError: the saved records have other columns or lanes, or more slots than this storage can hold.
        """
        per_slot = math.prod(lane_shape)
        capacity = -(-self.max_size // max(1, per_slot))
        if len(lane_shape) != self.ndim - 1 or (self._table is not None and lane_shape != self._lane_shape):
            raise LayoutError(f"saved lanes ({list(lane_shape)}) must be those of this storage: {list(self.shape[1:])}")
        if filled > capacity:
            raise LayoutError(f"max_size ({self.max_size}) must hold the saved {filled} slots")
        if self._table is None:
            return Table(self._columns_to_fill(leaves, capacity * per_slot, filled * per_slot), spec)
        nothing = [torch.empty(0, *leaf.shape, dtype=leaf.dtype, device="cpu") for leaf in leaves]
        self._table.checked(Rows([leaf.key for leaf in leaves], nothing, ("saved", ()), 0))
        return self._table

    def adopt(
        self, table: Table | None, lane_shape: tuple[int, ...], filled: int, generations: dict[str, Any] | None
    ) -> None:
        """Takes columns over that came from `room_for` and hold `filled` slots by now, and the stamps of those."""
        if table is not None:
            self._table, self._lane_shape = table, lane_shape
        self._filled = filled
        if generations is not None:
            self.track_generations().load_state_dict(generations)
        elif self._generations is not None:
            self._generations.restart(filled)

    def drop(self, table: Table) -> None:
        """Is told that columns from `room_for` will not be taken over."""
