"""Priorities and patches that come after a draw from several buffers: each goes to the buffer it was drawn from."""

from __future__ import annotations

import math
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from replay_service.buffer.conditional import live_records, update_if_present
from replay_service.buffer.ensemble.members import MemberIndex
from replay_service.buffer.index import Index
from replay_service.buffer.late_writes import LateWrites
from replay_service.buffer.priorities import checked_priorities
from replay_service.errors import LayoutError
from replay_service.info import priorities_of
from replay_service.records import ConditionalUpdateResult, UpdateResult
from replay_service.specs import Key
from replay_service.structure import Rows, flatten_rows, folded

__all__ = ["MemberUpdates"]


class MemberUpdates(LateWrites):
    """Late writes to several buffers, all or none: each buffer's part is validated before the first is written."""

    members: tuple[Any, ...]

    def update_priority(
        self, index: Index, priority: Any, *, generation: Tensor | None = None, timeout: float | None = None
    ) -> UpdateResult:
        """Sets the priorities of records.

        Args:
            index: as samples carry it: `buffer_ids` and `index`, of one shape `[…]`.
            priority: `[…]`, several per record `[…, k]`, or one number for all; finite and not negative.
            generation: int64 `[…]`; records overwritten since are skipped.
            timeout: accepted as by hosted buffers; nothing here waits.

        Returns:
            the mask `[…]` of records whose priority was set; False where a buffer's sampler keeps none.

        Raises:
            PriorityError: a priority is NaN, infinite or negative. Nothing was set.
            IndexError: a buffer, or (only without `generation`) a record that is not there. Nothing was set.
            ValueError: lengths differ, or `generation` was given and a buffer tracks none.
        """
        with self.lock:
            named = self._named(index)
            values = _per_record(priority, named)
            stamps = None if generation is None else _one_each(generation, named, "generation")
            calls: list[tuple[int, Tensor, Tensor, Tensor | None]] = []
            for member, rows in named.groups():
                part, stamp = values if values.ndim == 0 else values[rows], None if stamps is None else stamps[rows]
                self._check_priorities(member, named.local[rows], part, stamp)
                calls.append((member, rows, part, stamp))
            updated = torch.zeros(len(named), dtype=torch.bool, device="cpu")
            for member, rows, part, stamp in calls:
                result = self.members[member].update_priority(named.local[rows], part, generation=stamp)
                updated[rows] = result.updated
        return UpdateResult(updated.reshape(named.shape))

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Sets the priorities of a sampled batch from its entry `priority_key`; rows overwritten since are skipped where stamps tell.

        Raises:
            KeyError: `data` has no `index` or no such entry.
            PriorityError: a priority is NaN, infinite or negative.
        """
        priority = data.get(self.priority_key, None)
        if priority is None:
            raise KeyError(f"priority_key ({self.priority_key}) must be an entry of data; got {list(data.keys())}")
        index, values, generation = priorities_of(data, priority)
        self.update_priority(index, values, generation=generation)

    @property
    def priority_key(self) -> str | Key:
        """The entry that holds priorities: that of the first buffer that has one."""
        keys = (getattr(member, "priority_key", None) for member in self.members)
        return next((key for key in keys if key is not None), "td_error")

    def update_if_present(
        self,
        *,
        index: Index,
        generation: Tensor,
        patch: Any,
        version_key: str | Key | None = None,
        version: Tensor | int | None = None,
        require_newer: bool = False,
        timeout: float | None = None,
    ) -> ConditionalUpdateResult:
        """Patches the records that (index, generation) still names, each in its own buffer.

        Args:
            index: as samples carry it: `buffer_ids` and `index`, of one shape `[…]`.
            generation: int64 `[…]`, as sampled.
            patch: TensorDict or dict of stored entries `[…, *shape]`.
            version_key, version, require_newer: as for one buffer; `version` is one number or `[…]`.
            timeout: accepted as by hosted buffers; nothing here waits.

        Returns:
            the result, whose masks have the shape `[…]`.

        Raises:
            LayoutError, ValueError, TypeError: as for one buffer. Nothing was written, in none of them.
            IndexError: a buffer that is not there.
        """
        with self.lock:
            named = self._named(index)
            stamps = _one_each(generation, named, "generation")
            rows_of_patch = _patch_rows(patch, named)
            versions = _versions(version, named)
            updates: list[tuple[int, Tensor, dict[str, Any]]] = []
            for member, rows in named.groups():
                update = {
                    "index": named.local[rows],
                    "generation": stamps[rows],
                    "patch": rows_of_patch.take(rows),
                    "version_key": version_key,
                    "version": versions[rows] if isinstance(versions, Tensor) and versions.ndim else versions,
                    "require_newer": require_newer,
                }
                # With stamps that no record has, all of it is validated and nothing is written.
                nobody: dict[str, Any] = {**update, "generation": torch.full_like(stamps[rows], -1)}
                update_if_present(self.members[member].storage, **nobody)
                updates.append((member, rows, update))
            updated = torch.zeros(len(named), dtype=torch.bool, device="cpu")
            rejected = None if version_key is None else torch.zeros(len(named), dtype=torch.bool, device="cpu")
            for member, rows, update in updates:
                result: ConditionalUpdateResult = self.members[member].update_if_present(**update)
                updated[rows] = result.updated
                if rejected is not None and result.version_rejected is not None:
                    rejected[rows] = result.version_rejected
            self._outdate()
        shape = named.shape
        return ConditionalUpdateResult(updated.reshape(shape), None if rejected is None else rejected.reshape(shape))

    def mark_update(self, index: Any) -> None:
        """Tells the buffers of records that were changed in place."""
        with self.lock:
            named = self._named(index)
            for member, rows in named.groups():  # raises before anybody is told
                self.members[member].storage.flat_slots(named.local[rows])
            for member, rows in named.groups():
                self.members[member].mark_update(named.local[rows])
            self._outdate()

    def _named(self, index: Any) -> MemberIndex:
        """The records that `index` names."""
        named: MemberIndex = self._storage.named(index)  # type: ignore[attr-defined]
        return named

    def _outdate(self) -> None:
        """Lets batches drawn ahead be read again; each buffer told its own parts already."""
        self.tell_changed(torch.zeros(0, dtype=torch.int64, device="cpu"))

    def _check_priorities(self, member: int, local: Tensor, priority: Tensor, generation: Tensor | None) -> None:
        """Raises what `update_priority` of that buffer would."""
        buffer = self.members[member]
        if generation is not None:
            live_records(buffer.storage, local, generation)
        else:
            buffer.storage.flat_slots(local)
        checked_priorities(priority, local.shape[0], buffer.sampler.reduction)


def _per_record(priority: Any, named: MemberIndex) -> Tensor:
    """Priorities as one number `[]`, one per record `[n]`, or several `[n, k]`."""
    values = torch.as_tensor(priority, device="cpu").detach().to("cpu")
    count = len(named)
    if values.numel() == count:
        return values.reshape(-1)
    if values.numel() == 1:
        return values.reshape(())
    for leading in (named.shape, torch.Size([count])):
        if count and values.shape[: len(leading)] == leading:
            return values.reshape(count, -1)
    raise ValueError(f"priority ({list(values.shape)}) must be a scalar or have one entry per index; got {count}")


def _one_each(given: Any, named: MemberIndex, name: str) -> Tensor:
    values = torch.as_tensor(given, device="cpu").detach().to("cpu").reshape(-1)
    if values.numel() != len(named):
        raise ValueError(f"{name} ({values.numel()} entries) must have one entry per index; got {len(named)}")
    return values


def _versions(version: Any, named: MemberIndex) -> Any:
    """A version for all records, or one for each `[n]`."""
    if version is None or torch.as_tensor(version, device="cpu").numel() == 1:
        return version
    return _one_each(version, named, "version")


def _patch_rows(patch: Any, named: MemberIndex) -> Rows:
    """The patch with one row per record."""
    raw = patch if isinstance(patch, Rows) else flatten_rows(patch)
    shape = tuple(named.shape)
    if math.prod(shape) == raw.count and len(shape) == 1:
        return raw
    try:
        return folded(raw, shape)
    except (LayoutError, RuntimeError) as error:
        raise LayoutError(f"patch ({raw.count} rows) must begin with the shape of index, {list(shape)}") from error
