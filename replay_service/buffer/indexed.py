"""Records by index: reading and overwriting them in place, late writes, priorities."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from replay_service.buffer.access import first_slots, update_records, write_column, write_first
from replay_service.buffer.conditional import live_records, update_if_present
from replay_service.buffer.index import Index, is_coordinates, is_key, is_single
from replay_service.buffer.local_service import finished
from replay_service.buffer.parts import BufferParts
from replay_service.buffer.storages.list import stacked
from replay_service.buffer.time_axis import swapped
from replay_service.errors import PriorityError
from replay_service.records import ConditionalUpdateResult, UpdateResult
from replay_service.specs import Key

__all__ = ["IndexedRecords"]


class IndexedRecords(BufferParts):
    """Everything that names records by index instead of drawing or appending them."""

    # -- priorities and late writes ---------------------------------------------------------------------------------

    def update_priority(self, index: Index, priority: Any, *, generation: Tensor | None = None) -> UpdateResult:
        """Sets the priorities of records.

        Args:
            index: as `extend` or `sample` gave it, `[B]`.
            priority: `[B]`, or one number for all; finite and not negative.
            generation: int64 `[B]`; records overwritten since are skipped instead of given the priority of their predecessor.

        Returns:
            the mask of records whose priority was set; all False if the sampler keeps no priorities.

        Raises:
            PriorityError: a priority is NaN, infinite or negative. Nothing was set.
            IndexError: an index that no record has (only without `generation`).
            ValueError: lengths differ, or `generation` was given and the writer tracks none.
        """
        with self.lock:
            if generation is not None:
                records, live = live_records(self._storage, index, generation)
            else:
                records = self._storage.flat_slots(index)
                live = torch.ones(records.numel(), dtype=torch.bool)
            values = _checked_priorities(priority, records.numel())
            if not self._sampler.keeps_priorities:
                return UpdateResult(torch.zeros_like(live))
            self._sampler.update_priority(records[live], values[live], storage=self._storage)
        return UpdateResult(live)

    def update_if_present(
        self,
        *,
        index: Index,
        generation: Tensor,
        patch: Any,
        version_key: str | Key | None = None,
        version: Tensor | int | None = None,
        require_newer: bool = False,
    ) -> ConditionalUpdateResult:
        """Patches the records that (index, generation) still names.

        Args:
            index: int64 `[B]` (with lanes: coordinates).
            generation: int64 `[B]`, as sampled.
            patch: TensorDict or dict of stored entries `[B, *shape]`.
            version_key: a stored number per record that says how fresh it is.
            version: int or `[B]`; records whose stored version is higher are left alone.
            require_newer: leave those with an equal version alone, too.

        Raises:
            LayoutError: an entry of `patch` is not stored, or differs in dtype or row shape. Nothing was written.
            ValueError: no generations are tracked; `version` without `version_key` or the other way round; lengths differ; a version that
                the column cannot store exactly.
        """
        with self.lock:
            result, changed = update_if_present(
                self._storage, index, generation, patch, version_key, version, require_newer
            )
            self._sampler.mark_update(changed, storage=self._storage)
        return result

    def submit_update_if_present(self, **update: Any) -> Future[ConditionalUpdateResult]:
        """As `update_if_present`, as a future: here it ran already, and `result()` gives or raises what came of it."""
        return finished(self.update_if_present, **update)

    # -- reading ----------------------------------------------------------------------------------------------------

    def __getitem__(self, index: Index) -> Any:
        """The records at `index` as copies, or, for the name of an entry, that entry of all records.

        Integers and slices name slots; a tuple or `[n, ndim]` tensor of coordinates names single records of a storage with lanes.

        Raises:
            IndexError: outside what is filled.
        """
        if is_key(index):
            return self[:][index]
        with self.lock:
            data = self._storage.get(index)
        if is_single(index):
            return data
        if not self._storage.columnar:
            return (self._collate_fn or stacked)(data)
        return swapped(data, self._dim_of(index))

    def read_all_in_order(self, end: int | None = None) -> Any:
        """The leading `end` slots (all for None) in storage order, as `rb[:]` gives them."""
        with self.lock:
            return self[slice(len(first_slots(self._storage, end)))]

    # -- overwriting ------------------------------------------------------------------------------------------------

    def __setitem__(self, index: Index, data: Any) -> None:
        """Overwrites filled records in place; with `[:]`, entries that are not stored yet become new columns."""
        data = swapped(data, self._dim_of(index))
        with self.lock:
            if isinstance(index, slice) and index == slice(None):
                write_first(self._storage, data, None)
            else:
                self._storage.set(index, data, set_cursor=False)
            self.mark_update(index)

    def write_all(self, data: Any, end: int | None = None) -> None:
        """Overwrites the leading `end` slots (all for None); entries that are not stored yet become new columns."""
        data = swapped(data, self._dim_extend)
        with self.lock:
            self.mark_update(write_first(self._storage, data, end))

    def set_at_(self, key: str | Key, value: Any, index: Index) -> Any:
        """Writes `value` into the entry `key` of the records at `index`: one row each, or one for all. Returns the buffer."""
        if isinstance(value, Tensor) and self._dim_extend and self._dim_of(index) and value.ndim > self._storage.ndim:
            value = swapped(value, self._dim_extend)
        with self.lock:
            self._sampler.mark_update(write_column(self._storage, key, value, index), storage=self._storage)
        return self

    def set_(self, key: str | Key, value: Any) -> Any:
        """Writes `value` into the entry `key` of all records. Returns the buffer."""
        return self.set_at_(key, value, slice(None))

    def update_(
        self, input_dict_or_td: Any, clone: bool = False, *, keys_to_update: list[str | Key] | None = None
    ) -> Any:
        """Overwrites the stored entries that the data (shaped as `rb[:]`) names; only `keys_to_update`, if given. Returns the buffer."""
        keys = None if keys_to_update is None else [(k,) if isinstance(k, str) else tuple(k) for k in keys_to_update]
        data = swapped(input_dict_or_td, self._dim_extend)
        with self.lock:
            self._sampler.mark_update(update_records(self._storage, data, keys), storage=self._storage)
        return self

    def _dim_of(self, index: Index) -> int:
        """The dimension of time in a batch that `index` selects: none in single slots and in records named by coordinates."""
        if self._dim_extend == 0 or is_coordinates(index, self._storage.ndim):
            return 0
        return 0 if not isinstance(index, range) and is_single(index) else self._dim_extend


def _checked_priorities(priority: Any, count: int) -> Tensor:
    values = torch.as_tensor(priority).detach().to("cpu", torch.float64).reshape(-1)
    if values.numel() not in (1, count):
        raise ValueError(
            f"priority ({values.numel()} entries) must be a scalar or have one entry per index; got {count}"
        )
    if not bool(torch.isfinite(values).all()) or bool((values < 0).any()):
        wrong = values[~torch.isfinite(values) | (values < 0)][0]
        raise PriorityError(f"priority ({float(wrong)}) must be finite and not negative")
    return values.expand(count)
