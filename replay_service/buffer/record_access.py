"""The calls of a buffer that name records by index."""

from __future__ import annotations

from typing import Any

from replay_service.buffer.access import first_slots, update_records, write_column, write_first
from replay_service.buffer.index import Index, is_coordinates, is_key, is_single
from replay_service.buffer.time_axis import swapped
from replay_service.buffer.transforming import Transforming
from replay_service.specs import Key

__all__ = ["RecordAccess"]


class RecordAccess(Transforming):
    """Reads and writes of records in place; each under the buffer's lock, and told to the sampler.

    Integers and slices name slots; a tuple or an `[n, ndim]` tensor of coordinates names single records of a storage with lanes. Batches
    of whole slots have time where the buffer takes it (`dim_extend`). Records go through the buffer's transforms, but for single entries
    (`set_at_`, `set_`, `update_`), which are written as they are.
    """

    def __getitem__(self, index: Index) -> Any:
        """The records at `index` as copies, collated and transformed, or, for the name of an entry, that entry of all records.

        Raises:
            IndexError: outside what is filled.
        """
        if is_key(index):
            return self[:][index]
        with self.lock:
            data = self._storage.get(index)
        if not is_single(index):
            data = swapped(self._collated(data), self._dim_of(index))
        return self._transforms.forward(data)

    def __setitem__(self, index: Index, data: Any) -> None:
        """Overwrites filled records in place; with `[:]`, entries that are not stored yet become new columns."""
        data = swapped(self._inverted(data), self._dim_of(index))
        with self.lock:
            if isinstance(index, slice) and index == slice(None):
                write_first(self._storage, data, None)
            else:
                self._storage.set(index, data, set_cursor=False)
            self.mark_update(index)

    def read_all_in_order(self, end: int | None = None, *, timeout: float | None = None) -> Any:
        """The leading `end` slots (all for None) in storage order, as `rb[:]` gives them; nothing here waits for `timeout`."""
        with self.lock:
            data = self._storage.get(slice(len(first_slots(self._storage, end))))
        return self._transforms.forward(swapped(self._collated(data), self._dim_extend))

    def write_all(self, data: Any, end: int | None = None, *, timeout: float | None = None) -> None:
        """Overwrites the leading `end` slots (all for None); entries that are not stored yet become new columns.

        Nothing here waits for `timeout`.
        """
        data = swapped(self._inverted(data), self._dim_extend)
        with self.lock:
            self.mark_update(write_first(self._storage, data, end))

    def set_at_(self, key: str | Key, value: Any, index: Index) -> Any:
        """Writes `value` into the entry `key` of the records at `index`: one row each, or one for all. Returns the buffer."""
        with self.lock:
            written = write_column(self._storage, key, value, index, self._dim_of(index))
            self.tell_changed(written)
        return self

    def set_(self, key: str | Key, value: Any) -> Any:
        """Writes `value` into the entry `key` of all records. Returns the buffer."""
        return self.set_at_(key, value, slice(None))

    def update_(
        self, input_dict_or_td: Any, clone: bool = False, *, keys_to_update: list[str | Key] | None = None
    ) -> Any:
        """Overwrites the stored entries that the data, shaped as `rb[:]`, names (only `keys_to_update`, if given). Returns the buffer."""
        keys = None if keys_to_update is None else [(k,) if isinstance(k, str) else tuple(k) for k in keys_to_update]
        data = swapped(input_dict_or_td, self._dim_extend)
        with self.lock:
            self.tell_changed(update_records(self._storage, data, keys))
        return self

    def _dim_of(self, index: Index) -> int:
        """The dimension of time in a batch that `index` selects: none in single slots and in records named by coordinates."""
        if self._dim_extend == 0 or is_coordinates(index, self._storage.ndim) or is_single(index):
            return 0
        return self._dim_extend
