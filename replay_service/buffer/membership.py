"""What several buffers that are seen as one ask of each: draws and writes in two steps, so that all of them happen or none."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from replay_service.arguments import flag_of
from replay_service.buffer.pick import Pick
from replay_service.buffer.prefetching import Prefetching
from replay_service.buffer.priorities import checked_priorities
from replay_service.buffer.storages.base import Batch
from replay_service.buffer.time_axis import swapped

__all__ = ["Membership"]


class Membership(Prefetching):
    """The steps of `sample` and `extend`, one by one."""

    @abstractmethod
    def _incoming(self, data: Any) -> Any:
        """Records on their way in."""

    @abstractmethod
    def _carried_priority(self, batch: Batch) -> Tensor | None:
        """The priorities that new records bring along."""

    @abstractmethod
    def _write(self, batch: Batch, takes_priority: bool) -> Tensor:
        """Writes prepared records and tells the sampler."""

    def read(self, pick: Pick) -> Any:
        """The records of a draw, as they are stored; the caller has held `lock` since it drew."""
        return self._read(pick)

    def restamp(self, pick: Pick) -> None:
        """Brings the stamps in what is said of a draw up to date; the caller holds `lock`."""
        self._stamp(pick.records, pick.info)

    def intake(self, data: Any) -> Any:
        """Records as they are to be stored: the way in of the transforms, without `lock`."""
        return self._inverted(self._incoming(data))

    def writing(self, records: Any, update_priority: bool | None = None) -> Callable[[], Tensor]:
        """Validates records of `intake`, and gives the call that writes them and returns their slots.

        The caller holds `lock` until it has made that call, which then raises no error any more.

        Raises:
            LayoutError, PriorityError: as `extend`. Nothing changed.
            RuntimeError: the writer is that of a fixed data set.
        """
        self._writer.require_writable()
        batch = self._storage.prepare(swapped(records, self._dim_extend))
        self._writer.check_records(batch)
        takes_priority = update_priority is None or flag_of("update_priority", update_priority)
        if takes_priority and self._sampler.keeps_priorities:
            carried = self._carried_priority(batch)
            if carried is not None:
                checked_priorities(carried, len(batch), self._sampler.reduction)
        return partial(self._write, batch, takes_priority)
