"""A table: columns of one layout, and the spec that puts their rows together. It knows nothing of rings, lanes or what is filled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from replay_service.buffer.columns import Column
from replay_service.buffer.index import last_of_duplicates
from replay_service.errors import LayoutError, key_name
from replay_service.sources import SOURCES, words_of_rows
from replay_service.specs import Key, Spec, keys_of, with_leaf
from replay_service.structure import Leaf, Rows

__all__ = ["Table"]


class Table:
    """Columns `[records, *shape]`, all of them with the same number of records.

    Args:
        columns: in the order of the leaves of `spec`.
        spec: how a batch of rows is put together.

    Attributes:
        leaves: key, dtype and row shape of every column.
    """

    def __init__(self, columns: Sequence[Column], spec: Spec) -> None:
        self.columns = list(columns)
        self.spec = spec
        self.leaves: tuple[Leaf, ...] = tuple(column.leaf for column in self.columns)
        self._keys: list[Key] = [leaf.key for leaf in self.leaves]
        self._places: dict[Key, int] = {key: place for place, key in enumerate(self._keys)}

    @property
    def records(self) -> int:
        """Rows per column."""
        return int(self.columns[0].tensor.shape[0])

    @property
    def size_bytes(self) -> int:
        """Bytes of all columns."""
        return sum(column.tensor.nbytes for column in self.columns)

    def column(self, key: str | Key) -> Column:
        """The column under `key`.

        Raises:
            KeyError: no such column; what exists is listed.
        """
        wanted = (key,) if isinstance(key, str) else tuple(key)
        place = self._places.get(wanted)
        if place is None:
            raise KeyError(f"key ({key_name(wanted)}) must be one of {_names(self._keys)}")
        return self.columns[place]

    def holds(self, key: Key) -> bool:
        """Whether there is a column under `key`."""
        return key in self._places

    def checked(self, rows: Rows) -> Rows:
        """`rows` in the order of the columns, validated: what is returned can be written without a check.

        Raises:
            LayoutError: a key is missing or extra, or a dtype or row shape differs.
        """
        ordered = rows.tensors if rows.spec == self.spec else self._ordered(rows)
        for leaf, tensor in zip(self.leaves, ordered, strict=True):
            if tensor.dtype != leaf.dtype or tensor.shape[1:] != leaf.shape:
                raise LayoutError(
                    f"{key_name(leaf.key) or 'data'} must be {str(leaf.dtype).removeprefix('torch.')} with row shape "
                    f"{list(leaf.shape)}; got {str(tensor.dtype).removeprefix('torch.')} with {list(tensor.shape[1:])}"
                )
        return Rows(self._keys, ordered, self.spec, rows.count, checked=True)

    def write(self, start: int, rows: Rows) -> None:
        """Copies checked rows into the records from `start` on."""
        for column, tensor in zip(self.columns, rows.tensors, strict=True):
            column.write(start, tensor)

    def write_at(self, records: Tensor, rows: Rows) -> None:
        """Copies checked rows into `records` int64 `[n]`; of a record named several times, the last row stays."""
        winners = last_of_duplicates(records)
        for column, tensor in zip(self.columns, rows.tensors, strict=True):
            if winners is None:
                column.write_at(records, tensor)
            else:
                column.write_at(records[winners], tensor[winners.to(tensor.device)])

    def gathered(self, records: Tensor) -> list[Tensor]:
        """Copies `[n, *shape]` of `records` int64 `[n]`, one per column."""
        return [column.gathered(records) for column in self.columns]

    def read_into(self, records: Tensor, outs: Sequence[Tensor]) -> None:
        """Gathers `records` int64 `[n]` into `outs`, one `[n, *shape]` per column."""
        for column, out in zip(self.columns, outs, strict=True):
            column.gather(records, out)

    def with_columns(self, fresh: Sequence[Column]) -> Table:
        """A table of the same columns and the `fresh` ones.

        Raises:
            LayoutError: a key lies under a tensor, or names a level that holds others; this table is as before.
        """
        spec = self.spec
        for column in fresh:
            spec = with_leaf(spec, column.leaf.key)
        known = {column.leaf.key: column for column in [*self.columns, *fresh]}
        return Table([known[key] for key in keys_of(spec)], spec)

    def shared(self) -> Table:
        """The same records in memory that processes started from this one see, too."""
        return Table([column.shared() for column in self.columns], self.spec)

    def sources(self, records: int | None = None) -> list[str]:
        """The words of all files that the first `records` rows (all for None) refer to: what another process has to be told."""
        return words_of_rows(self.spec, self._keys, [column.tensor[:records] for column in self.columns])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "sources": self.sources()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        SOURCES.add(state.pop("sources"))
        self.__dict__.update(state)

    def _ordered(self, rows: Rows) -> list[Tensor]:
        """The tensors in the order of the columns: the same keys may come in any order, in any kind of container."""
        given = dict(zip(rows.keys, rows.tensors, strict=True))
        missing = _names([key for key in self._keys if key not in given])
        extra = _names([key for key in given if key not in self._places])
        if missing or extra:
            found = [text for text in (missing and f"missing {missing}", extra and f"extra {extra}") if text]
            raise LayoutError(f"keys must be {_names(self._keys)}; got {' and '.join(found)}")
        return [given[key] for key in self._keys]


def _names(keys: Sequence[Key]) -> list[str]:
    return [key_name(key) or "data" for key in keys]
