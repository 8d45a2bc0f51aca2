"""The arrays behind `episodes.EpisodeIndex`: their growth, the queues of long fragments, and being laid out anew.

Memory is in proportion to the rows that can be stored: 13 bytes a row (21 where rows bear trajectory ids), and for each queue at
most 4 bytes for every `minimum` rows. Large tables are not allocated before rows come.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

__all__ = ["EpisodeTable"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

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
    """Rows of `lanes` rings in fragments, kept for up to `capacity` rows a lane and allocated as far as they are used.

    `ring` is what the kernels take, `ids` the trajectory ids `[lanes, rows]` or None, `lane_state` the part of `ring`
    that tells each lane's cursor and number of rows. All are replaced when the table grows: read them anew at each call.
    """

    def __init__(self, capacity: int, lanes: int, dense_limit: int) -> None:
        self.kernels = _kernels()
        self.capacity = capacity
        self.ids: Ints | None = None
        self.lane_state = np.zeros((lanes, 4), np.int64)
        self._stale = False
        self._queue_of: dict[int, int] = {}
        self._allocate(capacity if capacity * lanes <= dense_limit else min(capacity, FIRST_ROWS))

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return self.lane_state.shape[0]

    @property
    def cursors(self) -> Ints:
        """Next slot to write of each lane, int64 `[lanes]`, a copy."""
        # The kernels' cursor wraps where the arrays end; as long as nothing was overwritten, rows lie from slot 0 on.
        full = self.lane_state[:, self.kernels.FILLED] == self.capacity
        return np.where(full, self.lane_state[:, self.kernels.CURSOR], self.lane_state[:, self.kernels.FILLED])

    @property
    def lengths(self) -> Ints:
        """Stored rows of each lane, int64 `[lanes]`, a copy."""
        return self.lane_state[:, self.kernels.FILLED].copy()

    def newest(self, lane_of: Ints) -> Ints:
        """Slot of the newest row of each lane of `lane_of` `[n]`; meaningless for a lane without rows."""
        newest: Ints = (self.lane_state[lane_of, self.kernels.CURSOR] - 1) % self.rows
        return newest

    def mark_stale(self, stale: bool) -> None:
        """Note that marks of rows in the middle changed, so that `settle` has something to do."""
        self._stale |= stale

    def settle(self) -> None:
        """Lay fragments out anew if marks changed in place since they were laid out; in proportion to the stored rows."""
        if self._stale:
            self.kernels.build(self.ring)
            self._stale = False

    def reserve(self, rows: int) -> None:
        """Make room for `rows` rows in each lane, at most `capacity`; doubling, so that a row costs the same in the end."""
        if rows <= self.rows or self.rows == self.capacity:
            return
        old_marks, old_ids, old_rows = self.marks, self.ids, self.rows
        self._allocate(min(self.capacity, max(rows, 2 * old_rows)))
        self.marks[:, :old_rows] = old_marks
        if old_ids is not None:
            self.keep_ids()[:, :old_rows] = old_ids
        self.lane_state[:, self.kernels.CURSOR] = self.lane_state[:, self.kernels.FILLED] % self.rows
        self._stale = True
        self.settle()

    def keep_ids(self) -> Ints:
        """The trajectory ids int64 `[lanes, rows]`, allocated if they were not kept before."""
        if self.ids is None:
            self.ids = np.zeros((self.lanes, self.rows), np.int64)
        return self.ids

    def replace(self, marks: NDArray[np.uint8], ids: Ints | None, cursors: Ints, lengths: Ints) -> None:
        """Hold these rows instead: `marks` and `ids` `[lanes, rows]` by slot, cursors and lengths `[lanes]`; by copy."""
        self.lane_state[:] = 0
        self.ids = None
        self.reserve(marks.shape[1])
        self.marks[:, : marks.shape[1]] = marks
        if ids is not None:
            self.keep_ids()[:, : ids.shape[1]] = ids
        self.lane_state[:, self.kernels.CURSOR] = cursors % self.rows
        self.lane_state[:, self.kernels.FILLED] = lengths
        self._stale = True
        self.settle()

    def queue(self, minimum: int) -> int | None:
        """Number of the queue of fragments with at least `minimum` steps, made at the first call; None: too long for any."""
        if minimum <= 1:
            return int(self.kernels.ALL_FRAGMENTS)
        if minimum > self.rows:
            return None
        if minimum not in self._queue_of:
            kept = [*self._queue_of][-(MAX_QUEUES - 1) :]
            self._make_queues([*kept, minimum])
        return self._queue_of[minimum]

    def _allocate(self, rows: int) -> None:
        if rows > MAX_ROWS:
            raise ValueError(f"rows ({rows}) must be at most {MAX_ROWS} in a lane; spread them over several lanes or buffers")
        self.rows = rows
        self.ids = None
        # Zeros that were never written cost no memory.
        self.marks = np.zeros((self.lanes, rows), np.uint8)
        self._fragments = tuple(np.zeros((self.lanes, rows), np.int32) for _ in range(3))
        # Counts of the old arrays mean nothing in the new ones.
        self.lane_state[:, [self.kernels.FIRST, self.kernels.COUNT]] = 0
        self._make_queues([minimum for minimum in self._queue_of if minimum <= rows])

    def _make_queues(self, minimums: list[int]) -> None:
        sizes = [max(1, self.rows // minimum) for minimum in minimums]
        queues = np.zeros((len(minimums), self.lanes, 5), np.int64)
        base = 0
        for number, (minimum, size) in enumerate(zip(minimums, sizes, strict=True)):
            queues[number, :, self.kernels.MINIMUM] = minimum
            queues[number, :, self.kernels.BASE] = base + size * np.arange(self.lanes)
            queues[number, :, self.kernels.SIZE] = size
            base += size * self.lanes
        self._queue_of = {minimum: number for number, minimum in enumerate(minimums)}
        self.ring = (self.marks, *self._fragments, self.lane_state, np.zeros(base, np.int32), queues)
        for number in range(len(minimums)):
            self.kernels.fill_queue(self.ring, number)
