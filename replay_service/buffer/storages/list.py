"""A storage of Python objects: any record, no layout."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch import Tensor

from replay_service.buffer.index import Index, as_slots, is_single
from replay_service.buffer.persist.checkpointers.base import StorageCheckpointerBase
from replay_service.buffer.persist.checkpointers.list import ListStorageCheckpointer
from replay_service.buffer.storages.base import Storage
from replay_service.errors import LayoutError

__all__ = ["ListStorage"]


class ListStorage(Storage):
    """Records as a list of Python objects: strings, ragged tensors, anything.

    Args:
        max_size: capacity in records; None for no bound.
        compilable: accepted for drop-in use.
        device: tensors (also inside TensorDicts) are moved there on their way in; None leaves them where they are.

    Raises:
        ValueError: `max_size` is not a positive integer.
    """

    def __init__(
        self, max_size: int | None = None, *, compilable: bool = False, device: torch.device | str | None = None
    ) -> None:
        super().__init__(sys.maxsize if max_size is None else max_size, None, compilable)
        self.device = None if device is None else torch.device(device)
        self._records: list[Any] = []

    def __len__(self) -> int:
        return len(self._records)

    def prepare(self, data: Any) -> PreparedList:
        """The records of a batch, one by one: a sequence as it is, a tensor or TensorDict split along its first dimension."""
        if isinstance(data, PreparedList):
            return data
        if isinstance(data, Tensor) or is_tensor_collection(data):
            if data.ndim == 0:
                raise LayoutError("data must have a leading dimension of rows; got none: use add for one record")
            records = list(data.unbind(0))
        elif isinstance(data, dict | str | bytes):
            raise LayoutError(f"data must be a sequence of records; got {type(data).__name__}: use add for one record")
        else:
            try:
                records = list(data)
            except TypeError:
                raise LayoutError(f"data must be a sequence of records; got {type(data).__name__}") from None
        return PreparedList(self._taken_in(record) for record in records)

    def prepare_one(self, data: Any) -> PreparedList:
        """One record as a batch of one."""
        return PreparedList([self._taken_in(data)])

    def set(self, cursor: Index, data: Any, *, set_cursor: bool = True) -> None:
        """Writes records into the slots `cursor`; new slots must follow the filled ones without a gap."""
        single = is_single(cursor)
        if isinstance(data, PreparedList):
            records: list[Any] = data
        else:
            records = self.prepare_one(data) if single else self.prepare(data)
        end = len(self._records)
        slots = cursor if set_cursor and isinstance(cursor, range) else self._slots_of(cursor, set_cursor)
        if len(slots) != len(records):
            raise LayoutError(f"data ({len(records)} rows) must have one row per slot; got {len(slots)} slots")
        for slot in slots:
            if not 0 <= slot < self.max_size or slot > end:
                raise IndexError(f"cursor ({slot}) must name a filled slot or the next free one ({end})")
            end = max(end, slot + 1)
        for slot, record in zip(slots, self._kept(records), strict=True):
            if slot == len(self._records):
                self._records.append(record)
            else:
                self._records[slot] = record

    def get(self, index: Index) -> Any:
        """One record for an int, else a list of records."""
        if is_single(index):
            return self._given_out(self._records[int(as_slots(index, len(self))[0])])
        return [self._given_out(self._records[slot]) for slot in as_slots(index, len(self)).tolist()]

    def empty(self) -> None:
        """Forgets all records."""
        self._records.clear()
        if self._generations is not None:
            self._generations.advance_written()

    def kept_records(self) -> list[Any]:
        """All records in the form they are kept in, for checkpointers: they are replaced, never changed."""
        return list(self._records)

    def adopt(self, records: list[Any], generations: dict[str, Any] | None) -> None:
        """Takes over records in the form they are kept in, and their stamps; no copy is made.

        Raises:
            LayoutError: more records than this storage can hold. Nothing was taken over.
        """
        self.require_room(len(records))
        self._records = records
        if generations is not None:
            self.track_generations().load_state_dict(generations)
        elif self._generations is not None:
            self._generations.restart(len(records))

    def require_room(self, count: int) -> None:
        """Raises LayoutError if this storage cannot hold `count` saved records."""
        if count > self.max_size:
            raise LayoutError(f"max_size ({self.max_size}) must hold the saved {count} records")

    def check_kept(self, record: Any) -> None:
        """Checks a record that was saved in the form it is kept in.

        Raises:
            LayoutError: this storage does not keep such records.
        """

    def state_dict(self) -> dict[str, Any]:
        """Copies of all records."""
        return {
            "records": [_copied(record) for record in self._records],
            "generations": None if self._generations is None else self._generations.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the records over, by copy.

        Raises:
            LayoutError: more records than this storage can hold, or records in another form than it keeps them in.
        """
        self._require_form(state_dict)
        records = state_dict["records"]
        self.require_room(len(records))
        self.adopt([_copied(record) for record in records], state_dict["generations"])

    def default_checkpointer(self) -> StorageCheckpointerBase:
        """Records one by one."""
        return ListStorageCheckpointer()

    def _taken_in(self, record: Any) -> Any:
        """The stored form: a copy, so that what the caller does with the original later does not show."""
        record = _copied(record)
        if self.device is not None and (isinstance(record, Tensor) or is_tensor_collection(record)):
            record = record.to(self.device)
        return record

    def _kept(self, records: Sequence[Any]) -> Sequence[Any]:
        """Prepared records in the form they are kept in; made of all of them before the first one is written."""
        return records

    def _given_out(self, record: Any) -> Any:
        """The form a reader gets: a copy, so that the reader may write to it."""
        return _copied(record)

    def _require_form(self, state_dict: dict[str, Any]) -> None:
        if "form" in state_dict:
            raise LayoutError(f"state_dict must hold records as they are; got {state_dict['form']} ones")

    def _slots_of(self, cursor: Index, may_grow: bool) -> list[int]:
        return as_slots(cursor, self.max_size if may_grow else len(self)).tolist()


class PreparedList(list[Any]):
    """Records that were validated and copied already."""

    def __getitem__(self, part: Any) -> Any:
        taken = super().__getitem__(part)
        return PreparedList(taken) if isinstance(part, slice) else taken

    def take(self, rows: Tensor) -> PreparedList:
        """The records `rows` int64 `[n]`."""
        return PreparedList(self[row] for row in rows.tolist())


def _copied(record: Any) -> Any:
    if isinstance(record, Tensor):
        return record.detach().clone()
    if isinstance(record, TensorDictBase) or is_tensor_collection(record):
        return record.clone()
    if isinstance(record, str | bytes | int | float | bool | complex | type(None)):
        return record
    if isinstance(record, tuple) and hasattr(record, "_fields"):
        return type(record)(*map(_copied, record))
    if isinstance(record, list | tuple):
        return type(record)(_copied(part) for part in record)
    if isinstance(record, dict):
        return {name: _copied(part) for name, part in record.items()}
    return copy.deepcopy(record)


def stacked(records: Sequence[Any], stack: Callable[[Any], Any] = torch.stack) -> Any:
    """Default collation: tensors and TensorDicts of one shape are stacked, dicts and tuples of them leaf by leaf, others stay a list.

    What is a batch already stays as it is.
    """
    if is_tensor_collection(records):
        return records
    first = records[0] if records else None
    try:
        if isinstance(first, Tensor) or is_tensor_collection(first):
            return stack(records)
        if isinstance(first, dict) and all(isinstance(r, dict) and r.keys() == first.keys() for r in records):
            return {name: stacked([record[name] for record in records], stack) for name in first}
        if isinstance(first, tuple) and all(type(r) is type(first) and len(r) == len(first) for r in records):
            parts = [stacked(part, stack) for part in zip(*records, strict=True)]
            return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    except (RuntimeError, TypeError, KeyError):
        return list(records)  # ragged or mixed records cannot be stacked; the caller gets them one by one
    return list(records)
