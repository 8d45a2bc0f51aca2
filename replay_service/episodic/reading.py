"""Reading an episodic buffer: steps by index, their neighbours, stacked frames, and draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replay_service.episodic.batch import Batch
from replay_service.episodic.parts import RESERVED, BufferParts
from replay_service.errors import EmptyBufferError

__all__ = ["BufferReading"]

Ints = NDArray[np.int64]
STACKED = ("obs", "obs_next", "info", "policy")


class BufferReading(BufferParts):
    """The calls that read."""

    # -- draws ------------------------------------------------------------------------------------------------------

    def sample_indices(self, batch_size: int | None) -> Ints:
        """Slots of steps, int64 `[n]`.

        Args:
            batch_size: how many, drawn with replacement; 0: all, oldest to newest, ring by ring; None: all, shuffled;
                below 0: none.

        Raises:
            EmptyBufferError: some are to be drawn, and there is no step, or with `sample_avail` none with enough steps
                before it.
        """
        with self.lock:
            self._settle()
            slots = self._drawn(batch_size)
            self._relabel(slots)
            return slots

    def sample(self, batch_size: int | None) -> tuple[Batch, Ints]:
        """Steps and their slots, `(buffer[slots], slots)`; as `sample_indices`."""
        with self.lock:
            slots = self.sample_indices(batch_size)
            return self._read(slots), slots

    def _drawn(self, batch_size: int | None) -> Ints:
        if batch_size is not None and batch_size < 0:
            return np.empty(0, np.int64)
        if batch_size == 0:
            return self._available()
        if batch_size is None:
            return self._random.permutation(self._available())
        if len(self) == 0:
            raise EmptyBufferError(
                f"batch_size ({batch_size}) must be 0 or less while nothing is stored; add steps first"
            )
        if not self._options.sample_avail or self.stack_num == 1:
            return self._draws.draw(batch_size, self._rings, self._random)
        return self._drawn_available(batch_size)

    def _drawn_available(self, batch_size: int) -> Ints:
        """Draws again until all have enough steps before them; looks through all steps if that takes long."""
        kept = np.empty(0, np.int64)
        for _ in range(4):
            slots = self._draws.draw(batch_size, self._rings, self._random)
            kept = np.concatenate([kept, slots[self._rings.positions(slots) >= self.stack_num - 1]])
            if kept.size >= batch_size:
                return kept[:batch_size]
        available = self._available()
        if available.size == 0:
            raise EmptyBufferError(
                f"sample_avail must find a step with stack_num - 1 ({self.stack_num - 1}) steps of its episode before it; "
                "got none: add longer episodes"
            )
        return self._draws.choose(batch_size, available, self._random)

    def _settle(self) -> None:
        """Undoes what was changed for the latest draw only; called before anything is written, drawn or saved."""

    def _relabel(self, slots: Ints) -> None:
        """Changes drawn steps in place, until `_settle`."""

    # -- neighbours -------------------------------------------------------------------------------------------------

    def prev(self, index: Any) -> Any:
        """The slot of the step before each, or its own at the start of its episode (or of what is stored of it).

        Args:
            index: slots of stored steps, of any shape.

        Returns:
            int64 of that shape.

        Raises:
            IndexError: a slot that holds no step.
        """
        with self.lock:
            return self._rings.prev(self._numbers_of(index))[()]

    def next(self, index: Any) -> Any:
        """The slot of the step after each, or its own at the end of its episode and for the newest step; as `prev`."""
        with self.lock:
            return self._rings.next(self._numbers_of(index))[()]

    def unfinished_index(self) -> Ints:
        """Slots of steps that nothing follows though they are not done, int64 `[n]`, ring by ring: the newest of each
        ring, and those before a cut (see `update`)."""
        with self.lock:
            return self._rings.unfinished(self.done) if len(self) else np.empty(0, np.int64)

    def get_buffer_indices(self, start: int, stop: int) -> Ints:
        """Slots from `start` up to, not including, `stop`, over the edge of their ring if `stop` is not above `start`.

        Raises:
            ValueError: the two lie in different rings.
        """
        with self.lock:
            edges = self._rings.edges
            rings = np.searchsorted(edges, [start, stop - 1], side="right") - 1
            if rings[0] != rings[1] or not 0 <= rings[0] < self._rings.number:
                raise ValueError(
                    f"start and stop ({start}, {stop}) must lie in the same ring; got rings that begin at {edges}"
                )
            first, last = edges[rings[0]], edges[rings[0] + 1]
        if stop > start:
            return np.arange(start, stop)
        return np.concatenate([np.arange(start, last), np.arange(first, stop)])

    # -- steps ------------------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Batch:
        """The steps at `index`, copied: entries `[*shape of index, …]`, with one axis of `stack_num` frames more in
        `obs`, `obs_next`, `info` and `policy` if that is above 1; where an episode has fewer steps, its first one is
        repeated.

        Args:
            index: slots, negative ones counting back from the last that is stored; a mask, of slots or of stored steps;
                `[:]` for everything that may be drawn, oldest to newest, ring by ring; or another slice of the stored
                slots in the order of their numbers.

        Raises:
            IndexError: a slot that holds no step.
            EmptyBufferError: nothing was ever stored.
        """
        with self.lock:
            return self._read(self._slots_of(index))

    def get(
        self, index: Any, key: str | tuple[str, ...], default_value: Any = None, stack_num: int | None = None
    ) -> Any:
        """One entry of the steps at `index` (as for `buffer[index]`), copied and stacked from `stack_num` steps.

        Args:
            index: which steps.
            key: an entry's name, or the parts of a nested one.
            default_value: what is returned if there is no such entry.
            stack_num: None: the buffer's own; 1: no stacking.

        Raises:
            KeyError: there is no such entry, and no default.
            IndexError: a slot that holds no step.
        """
        parts = (key,) if isinstance(key, str) else tuple(key)
        with self.lock:
            if not self._store.has(parts):
                if default_value is not None:
                    return default_value
                raise KeyError(f"key ({'.'.join(parts)}) must be one of {list(self._store.names)}")
            slots = self._slots_of(index)
            return self._store.read(parts, self._windows(slots, self.stack_num if stack_num is None else stack_num))

    def hasnull(self) -> bool:
        """Whether any stored number is NaN or any stored object None."""
        with self.lock:
            return bool(self._store.nulls(self._rings.stored()).any())

    def isnull(self) -> Batch:
        """Where `buffer[:]` has NaN or None: a `Batch` of flags."""
        return self[:].isnull()

    def _windows(self, slots: Ints, stack_num: int) -> Ints:
        return slots if stack_num == 1 else self._rings.window(slots, np.arange(1 - stack_num, 1))

    def _read(self, slots: Ints) -> Batch:
        """The steps at `slots`, all of which are stored."""
        if "obs" not in self._store:
            raise EmptyBufferError("index must name stored steps; got an empty buffer: add steps first")
        store, windows = self._store, self._windows(slots, self.stack_num)
        content: dict[str, Any] = {}
        for name in RESERVED:
            if name in store:
                if name not in self._hidden:
                    content[name] = store.read((name,), windows if name in STACKED else slots)
            elif name == "obs_next" and self._options.ignore_obs_next:
                content[name] = store.read(("obs",), self._windows(self._rings.next(slots), self.stack_num))
            elif name in STACKED:
                content[name] = Batch()
        content.update((name, store.read((name,), slots)) for name in store.names if name not in RESERVED)
        self._draws.decorate(content, slots)
        return Batch.wrap(content)

    def snapshot(self) -> tuple[Mapping[str, Any], Ints, Ints]:
        """A copy of all steps as they are stored, oldest to newest, ring by ring; their slots; and those of them that
        are open (`unfinished_index`)."""
        with self.lock:
            self._settle()
            slots = self._rings.order()
            content = {name: self._store.read((name,), slots) for name in self._store.names}
            return content, slots, self.unfinished_index()
