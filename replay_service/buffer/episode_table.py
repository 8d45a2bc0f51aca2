"""The arrays behind `episodes.EpisodeIndex`: their growth, the queues of long fragments, and being laid out anew.

Memory is in proportion to the rows that can be stored: 13 bytes a row (21 where rows bear trajectory ids), and for each
queue at most 4 bytes for every `minimum` rows. Large tables are not allocated before rows come.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from replay_service.buffer.episode_columns import Kind

__all__ = ["EpisodeTable"]

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

FIRST_ROWS = 1024
MAX_ROWS = np.iinfo(np.int32).max  # places and slots are kept in four bytes

# Each distinct minimum costs every write a comparison. Past this many, the one that was asked for first makes room.
MAX_QUEUES = 16


@cache
def _kernels() -> ModuleType:
    # Not at the top: a process that never asks for episodes shall not wait for numba.
    from replay_service.buffer import episode_kernels

    return episode_kernels


class EpisodeTable:
    """Rows of `lanes` rings in fragments, for up to `capacity` rows a lane, allocated as far as they are used.

    Lanes and slots come as contiguous int64 `[n]`. Lanes must exist; slots that are not stored are found out before
    anything is changed, and told by number (-1: all are stored). `settle` comes before appending and before every
    question.
    """

    def __init__(self, capacity: int, lanes: int, dense_limit: int) -> None:
        self._kernels = _kernels()
        self.capacity = capacity
        self.lanes = lanes
        self._lane_state = np.zeros((lanes, 4), np.int64)
        self._stale = False
        self._ids: Ints | None = None
        self._no_ids = np.empty((lanes, 0), np.int64)
        self._queue_of: dict[int, int] = {}
        self._allocate(capacity if capacity * lanes <= dense_limit else min(capacity, FIRST_ROWS))

    @property
    def cursors(self) -> Ints:
        """Next slot to write of each lane, int64 `[lanes]`, a copy."""
        # The kernels' cursor wraps where the arrays end, but rows lie from slot 0 on until they fill the capacity.
        lengths = self._lane_state[:, self._kernels.FILLED]
        return np.where(lengths == self.capacity, self._lane_state[:, self._kernels.CURSOR], lengths)

    @property
    def lengths(self) -> Ints:
        """Stored rows of each lane, int64 `[lanes]`, a copy."""
        return self._lane_state[:, self._kernels.FILLED].copy()

    # Writing.

    def append(self, kind: Kind, lane_of: Ints, values: Ints) -> Ints:
        """Write rows `[n]` at the cursors of their lanes, for which there must be room (`reserve`); their slots."""
        self.settle()
        slots = np.empty(lane_of.size, np.int64)
        self._kernels.append(self._ring, self._ids_for(kind), lane_of, values, slots)
        return slots

    def rewrite(self, kind: Kind, lane_of: Ints, slots: Ints, values: Ints) -> int:
        """Give stored rows other flags or ids; number of the first row that is not stored, or -1."""
        unstored, stale = self._kernels.rewrite(self._ring, self._ids_for(kind), lane_of, slots, values)
        self._stale |= stale
        return int(unstored)

    def cut(self, lane_of: Ints) -> None:
        """End the fragments of the newest rows."""
        lane_of = lane_of[self._lane_state[lane_of, self._kernels.FILLED] > 0]
        self._marks[lane_of, self._newest(lane_of)] |= self._kernels.CUT

    def is_cut(self, lane_of: Ints) -> NDArray[np.bool_]:
        """Whether there is a cut behind the newest row of each lane, bool `[n]`; none where there is no row."""
        stored = self._lane_state[lane_of, self._kernels.FILLED] > 0
        marks: Bytes = self._marks[lane_of, self._newest(lane_of)]
        found: NDArray[np.bool_] = stored & ((marks & self._kernels.CUT) != 0)
        return found

    def clear(self, lane_of: Ints) -> None:
        """Forget the rows of these lanes."""
        self._lane_state[lane_of] = 0
        self._queues[:, lane_of, self._kernels.HEAD] = 0
        self._queues[:, lane_of, self._kernels.HELD] = 0

    def move_cursors(self, slot: int) -> None:
        """Let empty lanes begin at `slot`, for rows that will fill them."""
        self._lane_state[:, self._kernels.CURSOR] = slot

    def reserve(self, rows: int) -> None:
        """Make room for `rows` rows a lane, `capacity` at most; doubling, so that growth costs O(1) a row."""
        if rows <= self._rows or self._rows == self.capacity:
            return
        marks, ids, old_rows = self._marks, self._ids, self._rows
        self._allocate(min(self.capacity, max(rows, 2 * old_rows)))
        self._marks[:, :old_rows] = marks
        if ids is not None:
            self._ids_for("ids")[:, :old_rows] = ids
        self._lane_state[:, self._kernels.CURSOR] = self._lane_state[:, self._kernels.FILLED] % self._rows
        self._stale = True
        self.settle()

    def settle(self) -> None:
        """Lay out all fragments anew if marks changed in place; in proportion to the stored rows."""
        if not self._stale:
            return
        self._stale = False
        kernels = self._kernels
        cursors, lengths = self._lane_state[:, kernels.CURSOR].copy(), self.lengths
        self.clear(np.arange(self.lanes))
        for lane in np.flatnonzero(lengths):
            oldest = cursors[lane] if lengths[lane] == self._rows else 0
            marks = np.roll(self._marks[lane], -oldest)[: lengths[lane]].astype(np.int64)
            self._lane_state[lane, kernels.CURSOR] = oldest
            # Marks as they are, ids as they were: only what follows from the marks is written anew.
            kernels.append(self._ring, self._no_ids, np.full(marks.size, lane), marks, np.empty_like(marks))

    # Whole contents.

    def copies(self) -> tuple[Bytes, Ints | None]:
        """Marks and ids `[lanes, rows]` as far as rows are stored in any lane."""
        rows = int(self._lane_state[:, self._kernels.FILLED].max())
        return self._marks[:, :rows].copy(), None if self._ids is None else self._ids[:, :rows].copy()

    def replace(self, marks: Bytes, ids: Ints | None, cursors: Ints, lengths: Ints) -> None:
        """Hold a copy of these marks and ids `[lanes, rows]` instead."""
        self.forget_ids()
        self._lane_state[:] = 0
        rows = marks.shape[1]
        self.reserve(rows)
        self._marks[:, :rows] = marks
        if ids is not None:
            self._ids_for("ids")[:, :rows] = ids
        self._lane_state[:, self._kernels.CURSOR] = cursors % self._rows
        self._lane_state[:, self._kernels.FILLED] = lengths
        self._stale = True
        self.settle()

    def replace_columns(self, kind: Kind, values: Ints, cursors: Ints, lengths: Ints) -> None:
        """Hold rows with these flags or ids `[lanes, rows]` instead."""
        if kind == "ends":
            self.replace(values.astype(np.uint8) * np.uint8(self._kernels.END), None, cursors, lengths)
            return
        ends = values != np.roll(values, -1, axis=1)
        # What comes after the newest row is not known yet.
        stored = lengths > 0
        ends[stored, (cursors[stored] - 1) % self.capacity] = False
        self.replace(ends * np.uint8(self._kernels.END), values, cursors, lengths)

    def forget_ids(self) -> None:
        """Give the memory of trajectory ids back."""
        self._ids = None

    # Questions.

    def fragments_of(self, lane_of: Ints, slots: Ints, found: Ints) -> int:
        """Fill `found` `[2, n]` with first slot and steps; returns the number of a row that is not stored, or -1."""
        return int(self._kernels.fragments_of(self._ring, lane_of, slots, found))

    def windows(
        self, lane_of: Ints, slots: Ints, offsets: Ints, across: bool, found: Ints, inside: NDArray[np.bool_]
    ) -> int:
        """Fill `found` and `inside` `[n, W]`; returns the number of a row that is not stored, or -1."""
        return int(self._kernels.windows(self._ring, lane_of, slots, offsets, across, found, inside))

    def unfinished(self) -> tuple[Ints, Ints]:
        """Slots and lanes of the newest rows without an end."""
        lane_of = np.flatnonzero(self._lane_state[:, self._kernels.FILLED])
        newest = self._newest(lane_of)
        is_open = (self._marks[lane_of, newest] & self._kernels.END) == 0
        return newest[is_open], lane_of[is_open]

    def list_fragments(self) -> Ints:
        """Start, steps and lane `[3, n]` of all fragments, lane after lane, oldest first."""
        found = np.empty((3, self.count(1)), np.int64)
        self._kernels.list_fragments(self._ring, found)
        return found

    def count(self, min_length: int) -> int:
        """Number of fragments of at least `min_length` steps."""
        queue = self._queue(min_length)
        if queue is None:
            return 0
        if queue == self._kernels.ALL_FRAGMENTS:
            return int(self._lane_state[:, self._kernels.COUNT].sum())
        return int(self._queues[queue, :, self._kernels.HELD].sum())

    def draw_slices(self, min_length: int, window: tuple[int, int, int], uniforms: NDArray[np.float64]) -> Ints | None:
        """Start, steps and lane `[3, n]` drawn by `uniforms` `[n, 2]`; None if no fragment has `min_length` steps."""
        queue = self._queue(min_length)
        drawn = np.empty((3, uniforms.shape[0]), np.int64)
        if queue is None or self._kernels.draw_slices(self._ring, queue, window, uniforms, drawn) == 0:
            return None
        return drawn

    # Arrays.

    def _newest(self, lane_of: Ints) -> Ints:
        """Slots of the newest rows of lanes that have rows."""
        slots: Ints = (self._lane_state[lane_of, self._kernels.CURSOR] - 1) % self._rows
        return slots

    def _ids_for(self, kind: Kind) -> Ints:
        """The kept ids `[lanes, rows]`, set aside at the first row that has one; `[lanes, 0]` where rows have flags."""
        if kind == "ends":
            return self._no_ids
        ids = self._ids if self._ids is not None else np.zeros((self.lanes, self._rows), np.int64)
        self._ids = ids
        return ids

    def _queue(self, minimum: int) -> int | None:
        """Number of the queue of fragments of at least `minimum` steps, made if need be; None: nothing is so long."""
        if minimum <= 1:
            return int(self._kernels.ALL_FRAGMENTS)
        if minimum > self._rows:
            return None
        if minimum not in self._queue_of:
            self._make_queues([*[*self._queue_of][1 - MAX_QUEUES :], minimum])
        return self._queue_of[minimum]

    def _allocate(self, rows: int) -> None:
        if rows > MAX_ROWS:
            raise ValueError(f"rows ({rows}) must be at most {MAX_ROWS} a lane; use more lanes or several buffers")
        self._rows = rows
        self._ids = None
        # Zeros that were never written cost no memory.
        self._marks = np.zeros((self.lanes, rows), np.uint8)
        self._fragments = np.zeros((3, self.lanes, rows), np.int32)
        # Counts of the old arrays mean nothing in the new ones.
        self._lane_state[:, [self._kernels.FIRST, self._kernels.COUNT]] = 0
        self._make_queues([minimum for minimum in self._queue_of if minimum <= rows])

    def _make_queues(self, minimums: list[int]) -> None:
        kernels, lanes = self._kernels, np.arange(self.lanes)
        self._queues = np.zeros((len(minimums), self.lanes, 5), np.int64)
        base = 0
        for number, minimum in enumerate(minimums):
            size = self._rows // minimum
            self._queues[number, :, kernels.MINIMUM] = minimum
            self._queues[number, :, kernels.BASE] = base + size * lanes
            self._queues[number, :, kernels.SIZE] = size
            base += size * self.lanes
        self._queue_of = {minimum: number for number, minimum in enumerate(minimums)}
        self._ring = (self._marks, self._fragments, self._lane_state, np.zeros(base, np.int32), self._queues)
        for number in range(len(minimums)):
            kernels.fill_queue(self._ring, number)
