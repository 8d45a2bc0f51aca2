"""The calls of a buffer that name records by index."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from replay_service.buffer.access import first_slots, update_records, write_column, write_first
from replay_service.buffer.index import Index
from replay_service.buffer.samplers.base import Sampler
from replay_service.buffer.storages.base import Storage
from replay_service.buffer.storages.list import stacked
from replay_service.specs import Key

__all__ = ["RecordAccess"]


class RecordAccess:
    """Reads and writes of records in place; each under the buffer's lock, and told to the sampler."""

    lock: threading.RLock
    _storage: Storage
    _sampler: Sampler
    _collate_fn: Callable[[Any], Any] | None

    def __getitem__(self, index: Index) -> Any:
        """The records at `index` as copies; `IndexError` outside what is filled."""
        with self.lock:
            data = self._storage.get(index)
        return (self._collate_fn or stacked)(data) if isinstance(data, list) else data

    def __setitem__(self, index: Index, data: Any) -> None:
        """Overwrites filled records in place; with `[:]`, entries that are not stored yet become new columns."""
        with self.lock:
            if isinstance(index, slice) and index == slice(None):
                write_first(self._storage, data, None)
            else:
                self._storage.set(index, data, set_cursor=False)
            self.mark_update(index)

    def read_all_in_order(self, end: int | None = None) -> Any:
        """The leading `end` slots (all for None) in storage order, as `rb[:]` gives them."""
        with self.lock:
            return self[slice(len(first_slots(self._storage, end)))]

    def write_all(self, data: Any, end: int | None = None) -> None:
        """Overwrites the leading `end` slots (all for None); entries that are not stored yet become new columns."""
        with self.lock:
            self.mark_update(write_first(self._storage, data, end))

    def set_at_(self, key: str | Key, value: Any, index: Index) -> None:
        """Writes `value` into the entry `key` of the records at `index`."""
        with self.lock:
            self._sampler.mark_update(write_column(self._storage, key, value, index), storage=self._storage)

    def set_(self, key: str | Key, value: Any) -> None:
        """Writes `value` into the entry `key` of all records."""
        self.set_at_(key, value, slice(None))

    def update_(
        self, input_dict_or_td: Any, clone: bool = False, *, keys_to_update: list[str | Key] | None = None
    ) -> None:
        """Overwrites the stored entries that the data `[len(self), …]` names; only `keys_to_update`, if given."""
        keys = None if keys_to_update is None else [(k,) if isinstance(k, str) else tuple(k) for k in keys_to_update]
        with self.lock:
            self._sampler.mark_update(update_records(self._storage, input_dict_or_td, keys), storage=self._storage)

    def mark_update(self, index: Index) -> None:
        """Tells the sampler that records were changed in place (new records' default priority, moved episode ends)."""
        with self.lock:
            self._sampler.mark_update(self._storage.flat_slots(index), storage=self._storage)
