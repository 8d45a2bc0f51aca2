"""Batches drawn ahead by threads of the buffer: the next is made while this one is learned from."""

from __future__ import annotations

import os
from abc import abstractmethod
from concurrent.futures import Future
from typing import Any

from torch import Tensor

from replay_service.buffer.assembly import make_sampler
from replay_service.buffer.consumption import require_consumable
from replay_service.buffer.counts import positive_integer
from replay_service.buffer.drawn_ahead import Drawn, DrawnAhead
from replay_service.buffer.local_service import LocalService, finished
from replay_service.buffer.persistence import Persistence
from replay_service.buffer.pick import Pick
from replay_service.buffer.samplers.base import Sampler
from replay_service.buffer.transforming import Transforming
from replay_service.errors import ReplayTimeoutError

__all__ = ["Prefetching"]


class Prefetching(Persistence, Transforming, LocalService):
    """Keeps the batches that are drawn ahead in step with everything else that happens to a buffer.

    Batches are given out in the order in which they were drawn, none is lost and none comes twice. They are of the buffer's `batch_size`,
    or, without one, of the size that was asked for first; those of another size are drawn when they are asked for.

    A batch drawn ahead holds the records, and the priorities count, as they were at its draw. Records changed in place since (`rb[i] =`,
    `set_at_`, `write_all`, `update_if_present`…) are read again before the batch is given out, and so are all if transforms were added.
    `empty`, `load_state_dict` and the exchange of a storage or sampler drop what was drawn ahead.
    """

    _ahead: DrawnAhead | None = None

    # What a buffer does with a draw; `ReplayBuffer` says how.

    @abstractmethod
    def pick(self, batch_size: int | None = None) -> Pick:
        """Draws record numbers without reading them; the caller holds `lock`."""

    @abstractmethod
    def finish(self, data: Any, info: dict[str, Any]) -> Any:
        """Makes a batch of the records that were read, without `lock`."""

    @abstractmethod
    def _read(self, pick: Pick) -> Any:
        """The records of a draw; the caller holds `lock`."""

    @abstractmethod
    def _stamp(self, records: Tensor, info: dict[str, Any]) -> None:
        """Adds the stamps of records to what is said of them; the caller holds `lock`."""

    @abstractmethod
    def _sample_size(self, batch_size: int | None) -> int:
        """The size of a draw: as asked for, or the buffer's."""

    # -- drawing ----------------------------------------------------------------------------------------------------

    def _begin_prefetch(self, depth: int | None) -> None:
        """Prepares to draw `depth` batches ahead; none for None and 0."""
        if depth is None or (depth == 0 and not isinstance(depth, bool)):
            return
        self._ahead = DrawnAhead(self, _draw_ahead, positive_integer(depth, "prefetch"))

    def _sampled(self, batch_size: int | None, timeout: float | None) -> tuple[Any, dict[str, Any]]:
        """The next batch and its info."""
        size = self._sample_size(batch_size)
        ahead = self._ahead_here()
        if ahead is not None and ahead.size is None:
            ahead.size = self._batch_size or size
        if ahead is None or size != ahead.size:
            with self.lock:
                pick = self.pick(size)
                data = self._read(pick)
            return self.finish(data, pick.info), pick.info
        drawn = ahead.take()
        if drawn is None:
            with self.lock:
                drawn = ahead.take()  # drawn by a thread before this one got the lock
                if drawn is None:
                    pick = self.pick(size)
                    ahead.went(self._sampler.ran_out)
                    data = self._read(pick)
        return (self.finish(data, pick.info), pick.info) if drawn is None else self._taken(ahead, drawn, timeout)

    def _taken(self, ahead: DrawnAhead, drawn: Drawn, timeout: float | None) -> tuple[Any, dict[str, Any]]:
        """The batch that was drawn ahead, and its info."""
        if drawn.is_outdated:
            pick = Pick(drawn.pick.records, dict(drawn.pick.info))
            with self.lock:
                data = self._read(pick)
                self._stamp(pick.records, pick.info)
            return self.finish(data, pick.info), pick.info
        if not drawn.is_ready(timeout):
            ahead.give_back(drawn)
            raise ReplayTimeoutError(f"timeout ({timeout} s) must cover the transforms of a batch drawn ahead")
        made: tuple[Any, dict[str, Any]] = drawn.result()
        return made

    def draw_ahead(self) -> None:
        """Draws one batch ahead if there is room; called by the threads that do that."""
        ahead = self._ahead
        if ahead is None or ahead.size is None:
            return
        with self.lock:
            if not ahead.has_room():
                return
            try:
                pick = self.pick(ahead.size)
            except Exception:
                # Whoever asks next draws by itself, and gets the error if there still is one.
                ahead.wait()
                return
            drawn = Drawn(pick, self._sampler.ran_out)
            ahead.append(drawn)
            read: Future[Any] = finished(self._read, pick)
        info = dict(pick.info)  # transforms change it, and the batch may have to be made once more
        drawn.finish(lambda: (self.finish(read.result(), info), info))

    @property
    def _epoch_is_over(self) -> bool:
        """Whether the batch given out last was the last of an epoch."""
        ahead = self._ahead_here()
        last = None if ahead is None else ahead.was_last
        return self._sampler.ran_out if last is None else last

    def _ahead_here(self) -> DrawnAhead | None:
        """The batches drawn ahead in this process: a forked one has no threads, and begins without any."""
        ahead = self._ahead
        if ahead is not None and ahead.process != os.getpid():
            self._ahead = ahead = DrawnAhead(self, _draw_ahead, ahead.depth)
        return ahead

    # -- in step with the rest --------------------------------------------------------------------------------------

    def tell_changed(self, records: Tensor) -> None:
        """Lets batches drawn ahead be read again."""
        super().tell_changed(records)
        if self._ahead is not None:
            self._ahead.outdate()

    def tell_emptied(self) -> None:
        """Drops what was drawn ahead."""
        super().tell_emptied()
        self._drop_ahead()

    def insert_transform(self, index: int, transform: Any, *, invert: bool = False) -> Any:
        """As `append_transform`, before the transform at `index`; batches drawn ahead go through it, too.

        Raises:
            IndexError: `index` is outside of what is there.
        """
        with self.lock:
            super().insert_transform(index, transform, invert=invert)
            if self._ahead is not None:
                self._ahead.outdate()
        return self

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Exchanges the sampler; the new one is told of all records, and batches drawn ahead are dropped. Returns the previous one.

        Raises:
            ValueError, TypeError: the parts do not go together, or it uses records up where batches are drawn ahead. Nothing was exchanged.
        """
        made = make_sampler(sampler)
        require_consumable(
            made, self._storage, self._writer, prefetch=None if self._ahead is None else self._ahead.depth
        )
        with self.lock:
            previous = super().set_sampler(made)
            self._drop_ahead()
        return previous

    def state_dict(self) -> dict[str, Any]:
        """Copies of everything that the next draws and writes depend on, the draws of batches drawn ahead included."""
        with self.lock:
            state = super().state_dict()
            ahead = self._ahead_here()
            if ahead is not None and ahead.size is not None:
                draws = [(_copied(drawn.pick), drawn.is_last) for drawn in ahead.waiting()]
                state["drawn_ahead"] = {
                    "size": ahead.size,
                    "draws": [(pick.records, pick.info, is_last) for pick, is_last in draws],
                }
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a state over, by copy; the parts and `batch_size` stay this buffer's own.

        Raises:
            KeyError: a part of the state is missing. Nothing was loaded.
            LayoutError: the saved records do not fit the storage. Nothing was loaded.
        """
        with self.lock:
            super().load_state_dict(state_dict)
            self._drop_ahead()
            self._restore_ahead(state_dict.get("drawn_ahead"))

    def stats(self, timeout: float | None = None) -> dict[str, Any]:
        """A snapshot: size, write_count, prefetch_queue_size, initialized, capacity, utilization. Waits for no other call."""
        return {**super().stats(), "prefetch_queue_size": 0 if self._ahead is None else len(self._ahead)}

    def close(self) -> None:
        """Ends the threads that draw ahead; asking for a sample starts them again."""
        if self._ahead is not None:
            self._ahead.stop()

    def shutdown(self, timeout: float | None = None) -> None:
        """As `close`."""
        self.close()

    def _drop_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.clear()

    def _restore_ahead(self, saved: dict[str, Any] | None) -> None:
        """Puts saved draws in front, whether or not this buffer draws ahead as far; their records are read when they are taken."""
        ahead = self._ahead_here()
        if saved is None or ahead is None or self._batch_size not in (None, saved["size"]):
            return
        ahead.size = saved["size"]
        for records, info, is_last in saved["draws"]:
            ahead.append(Drawn(_copied(Pick(records, info)), is_last, is_outdated=True))

    def __getstate__(self) -> dict[str, Any]:
        # A copy begins with nothing drawn ahead, as a forked process does.
        ahead = self._ahead
        return {**super().__getstate__(), "_ahead": None if ahead is None else ahead.depth}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__({**state, "_ahead": None})
        self._begin_prefetch(state["_ahead"])


def _copied(pick: Pick) -> Pick:
    info: dict[str, Any] = {}
    for name, value in pick.info.items():
        if isinstance(value, tuple):
            info[name] = tuple(part.clone() for part in value)
        else:
            info[name] = value.clone() if isinstance(value, Tensor) else value
    return Pick(pick.records.clone(), info)


def _draw_ahead(buffer: Prefetching) -> None:
    """Called with the buffer, so that a thread holds no bound method of it while it waits."""
    buffer.draw_ahead()
