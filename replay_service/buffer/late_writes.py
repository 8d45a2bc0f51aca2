"""Priorities and patches that come after a draw, when the records may be others already."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from replay_service.buffer.conditional import live_records, update_if_present
from replay_service.buffer.index import Index
from replay_service.buffer.local_service import finished
from replay_service.buffer.parts import BufferParts
from replay_service.buffer.priorities import checked_priorities
from replay_service.records import ConditionalUpdateResult, UpdateResult
from replay_service.specs import Key

__all__ = ["LateWrites"]


class LateWrites(BufferParts):
    """The calls of a buffer that come back to drawn records; each under the buffer's lock."""

    def update_priority(
        self, index: Index, priority: Any, *, generation: Tensor | None = None, timeout: float | None = None
    ) -> UpdateResult:
        """Sets the priorities of records.

        Args:
            index: as `extend` or `sample` gave it, `[B]`.
            priority: `[B]`, several per record `[B, …]` (the sampler's `reduction` makes one of them), or one number for all; finite
                and not negative.
            generation: int64 `[B]`; records overwritten since are skipped instead of given the priority of their predecessor.
            timeout: accepted as by hosted buffers; nothing here waits.

        Returns:
            the mask of records whose priority was set; all False if the sampler keeps no priorities.

        Raises:
            PriorityError: a priority is NaN, infinite or negative. Nothing was set.
            IndexError: an index that no record has (only without `generation`).
            ValueError: lengths differ, or `generation` was given and the writer tracks none.
        """
        with self.lock:
            sampler, live = self._sampler, None
            if generation is not None:
                records, live = live_records(self._storage, index, generation)
            else:
                records = self._storage.flat_slots(index)
            # Checked here, whatever the sampler: one of the user's own need not know how priorities can be wrong.
            values = checked_priorities(priority, records.numel(), sampler.reduction)
            if not sampler.keeps_priorities:
                return UpdateResult(torch.zeros(records.numel(), dtype=torch.bool, device="cpu"))
            if live is not None and not bool(live.all()):
                records, values = records[live], values[live]
            sampler.update_priority(records, values, storage=self._storage)
        accepted = torch.ones(records.numel(), dtype=torch.bool, device="cpu") if live is None else live
        return UpdateResult(accepted)

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
        """Patches the records that (index, generation) still names.

        Args:
            index: int64 `[B]` (with lanes: coordinates).
            generation: int64 `[B]`, as sampled.
            patch: TensorDict or dict of stored entries `[B, *shape]`.
            version_key: a stored number per record that says how fresh it is.
            version: int or `[B]`; records whose stored version is higher are left alone.
            require_newer: leave those with an equal version alone, too.
            timeout: accepted as by hosted buffers; nothing here waits.

        Raises:
            LayoutError: an entry of `patch` is not stored, or differs in dtype or row shape. Nothing was written.
            ValueError: no generations are tracked; `version` without `version_key` or the other way round; lengths differ; a version that
                the column cannot store exactly.
        """
        with self.lock:
            result, changed = update_if_present(
                self._storage, index, generation, patch, version_key, version, require_newer
            )
            self.tell_changed(changed)
        return result

    def submit_update_if_present(self, **update: Any) -> Future[ConditionalUpdateResult]:
        """As `update_if_present`, as a future: here it ran already, and `result()` gives or raises what came of it."""
        return finished(self.update_if_present, **update)
