"""Buffers that several processes of one machine hold: records in shared memory, counters brought up to date under one lock.

A process gets such a buffer by being forked from, or by being handed it when it is started (`Process(args=(buffer,))`). Columns, stamps
and counters are one for all; what a sampler keeps (priorities, epochs) is each process's own, and it is told of what others wrote.
"""

from __future__ import annotations

import multiprocessing
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol

import torch
from torch import Tensor

from replay_service.buffer.storages.base import Storage
from replay_service.buffer.writers.base import Writer
from replay_service.errors import LayoutError

__all__ = ["SharedLock"]

COLUMNS, FILLED, EPOCH, OWN = 0, 1, 2, 3
"""Places of the counters: columns of the layout, filled slots, how often the buffer was emptied; the rest are the writer's."""


class SharedParts(Protocol):
    """A buffer, as far as its lock must know it."""

    @property
    def storage(self) -> Storage:
        """The storage."""

    @property
    def writer(self) -> Writer:
        """The writer."""

    def tell_written(self, records: Tensor) -> None:
        """Tells the other parts of new records."""

    def tell_emptied(self) -> None:
        """Tells them that there are no records any more."""


class SharedLock(AbstractContextManager["SharedLock"]):
    """A lock between processes; whoever gets it first learns what the others wrote, and says what it wrote before it lets go.

    Args:
        buffer: the buffer; its storage shares its records.

    Raises:
        TypeError: the writer is none that goes around a ring: what it wrote could not be told from its counters.
    """

    def __init__(self, buffer: SharedParts) -> None:
        state = buffer.writer.state_dict()
        if "cursor" not in state or not all(isinstance(value, int) for value in state.values()):
            raise TypeError(f"share must have a ring writer; got {type(buffer.writer).__name__}")
        self._buffer = buffer
        self._names = sorted(state)
        # A lock of the spawning kind works in forked processes, too; the other way round it does not.
        self._lock = multiprocessing.get_context("spawn").RLock()
        self._depth = 0
        self._known = self._own()
        self._counts = torch.tensor(self._known, device="cpu").share_memory_()  # type: ignore[no-untyped-call]

    def __enter__(self) -> SharedLock:
        self._lock.acquire()
        self._depth += 1
        if self._depth == 1:
            try:
                self._catch_up(self._counts.tolist())
            except BaseException:
                self._depth = 0
                self._lock.release()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._depth == 1:
            own = self._own()
            if own != self._known:
                self._known = own
                self._counts.copy_(torch.tensor(own, device="cpu"))
        self._depth -= 1
        self._lock.release()

    def _own(self) -> list[int]:
        """The counters as this process has them."""
        storage, writer = self._buffer.storage, self._buffer.writer.state_dict()
        columns = len(storage.leaves() or ())
        return [columns, storage.filled, storage.epoch, *(int(writer[name]) for name in self._names)]

    def _catch_up(self, counts: list[int]) -> None:
        """Takes over what other processes did since."""
        if counts == self._known:
            return
        storage, writer = self._buffer.storage, self._buffer.writer
        columns = len(storage.leaves() or ())
        if counts[COLUMNS] != columns:
            raise LayoutError(
                f"shared buffer ({columns} columns here) must have its layout before processes part; another one has "
                f"{counts[COLUMNS]}: extend the buffer once, then start them"
            )
        emptied = counts[EPOCH] != self._known[EPOCH]
        written_before = writer.write_count
        storage.catch_up(counts[FILLED], counts[EPOCH])
        writer.load_state_dict(dict(zip(self._names, counts[OWN:], strict=True)))
        self._known = counts
        if emptied:
            self._buffer.tell_emptied()
        written = len(storage) if emptied else min(writer.write_count - written_before, len(storage))
        if written:
            end = counts[OWN + self._names.index("cursor")] * storage.lanes
            self._buffer.tell_written(torch.arange(end - written, end, device="cpu") % (storage.slots * storage.lanes))
