"""The `EpisodeIndex` of a storage, kept current by what a buffer tells its parts of writes.

A part that needs episode bounds (a slice sampler, a sample unit) has a keeper and passes on what it is told: `written`, `changed`,
`forget`. The index is made from the stored entries when it is first asked for, and followed from then on.

**Positions.** Steps are also numbered in the order they were written, the same in all lanes and never twice: a position goes on naming
its step while the ring turns, until `oldest` has passed it. `lineage` changes when this numbering starts anew.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from replay_service.buffer.episode_columns import Kind
from replay_service.buffer.episode_marks import EpisodeMarks, read_marks
from replay_service.buffer.episodes import EpisodeIndex
from replay_service.buffer.storages.base import Storage
from replay_service.errors import LayoutError
from replay_service.specs import Key

__all__ = ["EpisodeKeeper"]

Ints = NDArray[np.int64]


class EpisodeKeeper:
    """Keeps the index of one storage; every call is made under the buffer's lock.

    Args:
        marks: what tells where episodes end.
    """

    def __init__(self, marks: EpisodeMarks) -> None:
        self._marks = marks
        self._storage: Storage | None = None
        self._index: EpisodeIndex | None = None
        self._entries: tuple[Kind, list[Key]] = ("ends", [])
        self._newest: int | None = None
        self._written = 0
        self._lineage = 0

    # -- told of writes ---------------------------------------------------------------------------------------------

    def written(self, records: Tensor) -> None:
        """Is told of new records: flat numbers int64 `[n]`, all lanes of a slot after each other, in the order of their writing."""
        if records.numel() == 0:
            return
        self._newest = int(records[-1])
        self._written += records.numel()
        index, storage = self._index, self._storage
        if index is None or storage is None or self._marks.given is not None:
            return
        slots = records.numpy()[:: index.lanes] // index.lanes
        if slots.size * index.lanes != records.numel() or not _goes_on(index, slots):
            self._drop()  # a writer that goes around no ring: order is that of the slots
            return
        kind = self._entries[0]
        marks = self._read(storage, records)
        if marks is None:
            return
        marks = marks.reshape(slots.size, index.lanes)
        if kind == "ids":
            index.write(slots, ids=marks)
        else:
            index.write(slots, ends=marks)

    def changed(self, records: Tensor) -> None:
        """Is told of stored records, flat numbers int64 `[n]`, that were changed in place."""
        index, storage = self._index, self._storage
        if index is None or storage is None or self._marks.given is not None or records.numel() == 0:
            return
        if index.length != storage.filled:
            self._drop()
            return
        kind = self._entries[0]
        marks = self._read(storage, records)
        if marks is None:
            return
        slots, lanes = records.numpy() // index.lanes, records.numpy() % index.lanes
        if kind == "ids":
            index.rewrite(slots, ids=marks, lanes=lanes)
        else:
            index.rewrite(slots, ends=marks, lanes=lanes)

    def forget(self) -> None:
        """Forgets all records."""
        self._newest = None
        self._drop()

    # -- asked ------------------------------------------------------------------------------------------------------

    def index_of(self, storage: Storage) -> EpisodeIndex:
        """The index of `storage`, current; not to be kept beyond the lock.

        Raises:
            KeyError: no stored entry marks episodes.
            LayoutError: an entry that does cannot be read as flags or ids.
        """
        if storage.filled == 0:
            return EpisodeIndex(storage.slots, storage.lanes)  # not kept: a first batch may bring lanes along
        if self._storage is not None and storage is not self._storage:
            self._drop()
        index = self._index
        # Records that came without a word are found by their number, at least while the ring fills.
        if index is not None and self._marks.given is None and index.length != storage.filled:
            self._drop()
            index = None
        if index is None:
            index = self._made(storage)
            self._storage, self._index = storage, index
        return index

    @property
    def lineage(self) -> int:
        """Another number whenever positions from before mean nothing any more."""
        return self._lineage

    # -- positions (after `index_of`) -------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        """The position that is written next."""
        return self._written // self._lanes

    @property
    def oldest(self) -> int:
        """The position of the oldest stored step."""
        return self.end - (0 if self._index is None else self._index.length)

    def positions_at(self, slots: Ints, lanes: Ints) -> Ints:
        """The positions of stored slots int64 `[n]` in the lanes `[n]`."""
        index = self._known()
        positions: Ints = self.end - 1 - (index.cursors[lanes] - 1 - slots) % index.capacity
        return positions

    def slots_at(self, positions: Ints, lanes: Ints) -> Ints:
        """The slots of stored positions int64 `[n]` in the lanes `[n]`."""
        index = self._known()
        slots: Ints = (index.cursors[lanes] + positions - self.end) % index.capacity
        return slots

    # -- state ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where writing stands; bounds are read from the storage again."""
        return {"newest": self._newest, "written": self._written}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over where writing stands, for a storage that was loaded already."""
        newest, written = state["newest"], int(state["written"])
        self._newest = None if newest is None else int(newest)
        self._written = written
        self._drop()

    def __getstate__(self) -> dict[str, Any]:
        # The index is made again from the storage: a part may be copied without it, and compiled loops cannot.
        return {**self.__dict__, "_index": None, "_storage": None}

    # -- inner ------------------------------------------------------------------------------------------------------

    @property
    def _lanes(self) -> int:
        return 1 if self._index is None else self._index.lanes

    def _known(self) -> EpisodeIndex:
        if self._index is None:
            raise RuntimeError("index_of must be called before positions are asked for")
        return self._index

    def _read(self, storage: Storage, records: Tensor) -> NDArray[Any] | None:
        """The marks of records that are written already; where some have none, the next question says so."""
        try:
            return read_marks(storage, *self._entries, records)
        except LayoutError:
            self._drop()
            return None

    def _drop(self) -> None:
        self._index = None
        self._lineage += 1

    def _made(self, storage: Storage) -> EpisodeIndex:
        index, filled = EpisodeIndex(storage.slots, storage.lanes), storage.filled
        given = self._marks.given
        if given is not None:
            return _from_given(index, given, filled)
        kind, keys = self._entries = self._marks.entries(storage)
        marks = read_marks(storage, kind, keys, torch.arange(filled * storage.lanes, device="cpu")).reshape(
            filled, storage.lanes
        )
        newest = filled - 1 if self._newest is None or filled < storage.slots else self._newest // storage.lanes
        cursor = (newest + 1) % storage.slots
        if kind == "ids":
            index.rebuild(ids=marks, cursor=cursor, length=filled)
        else:
            index.rebuild(ends=marks, cursor=cursor, length=filled)
        return index


def _goes_on(index: EpisodeIndex, slots: Ints) -> bool:
    """Whether `slots` are the ones that a ring writes next."""
    first = int(slots[0]) if slots.size >= index.capacity else index.cursor
    return int(slots[-1]) < index.capacity and np.array_equal(slots, (first + np.arange(slots.size)) % index.capacity)


def _from_given(index: EpisodeIndex, given: tuple[Kind, NDArray[Any]], filled: int) -> EpisodeIndex:
    """The index of marks that were handed over: of a full ring there is no newest step, its last slot is followed by the first."""
    kind, values = given
    rows = values.shape[0] if values.ndim else 0
    if not 0 < rows <= filled or values.size != rows * index.lanes:
        name = "ends" if kind == "ends" else "trajectories"
        raise ValueError(f"{name} {list(values.shape)} must be one per stored step; got {filled} x {index.lanes} steps")
    marks = values.reshape(rows, index.lanes)
    cursor = np.full(index.lanes, rows)
    if rows == index.capacity:
        is_end = marks != np.roll(marks, -1, axis=0) if kind == "ids" else marks != 0
        # The seam between newest and oldest goes where an episode ends anyway.
        cursor = np.where(is_end.any(0), (is_end.argmax(0) + 1) % rows, 0)
    if kind == "ids":
        index.rebuild(ids=marks, cursor=cursor, length=rows)
    else:
        index.rebuild(ends=marks, cursor=cursor, length=rows)
    return index
