"""Where episodes begin and end in a ring of steps. Samplers, sample units, queries and episodic buffers ask here,
nobody else counts.

**Rules.** Rows are numbered by slot, 0 to `capacity - 1`; `cursor` is the slot that is written next. A *fragment* is a
maximal run of stored rows that belong to one trajectory, at least one row long. It ends with a row

- whose end flag is set, or whose successor has another trajectory id (one of the two, whichever is written), or
- that was followed by `cut()`, or
- that is the newest of its lane: what would follow is not written yet, or was overwritten.

It may go over the ring's edge, and its first rows may be overwritten already; then it begins with its oldest stored
row. An id that comes back later, elsewhere, is another fragment. Lanes are rings of their own beside each other. Rows
that were never written are in no fragment and never come out of any call.

**Interface.** Arrays in and out are numpy: slots int64 of any shape, which results share; `lanes` likewise, or None
where there is one lane. Nothing locks: make every call under the buffer's lock (queries too, they may have rewrites to
settle).

    index = EpisodeIndex(capacity, lanes=1)
    index.write(slots, ends=... | ids=...)             rows that every lane gets at the same slots, in write order
    index.append(lanes, ends=... | ids=...)            a row in each named lane, at that lane's own cursor -> slots
    index.rewrite(slots, ends=... | ids=...)           stored rows whose flags or ids changed in place
    index.cut(), index.clear()                         a boundary after the newest row; forget all rows
    index.rebuild(ends=..., cursor=..., length=...)    from whole columns, as after loading
    index.state_dict(), index.load_state_dict(state)   by copy; the same draws afterwards

    index.capacity, .lanes, .cursor, .length, .cursors, .lengths, .marked_by
    index.bounds_of(slots) -> Bounds(start, stop, length, position)
    index.start_of(slots), .stop_of, .length_of, .position_of, .is_first, .is_last
    index.prev(slots), .next(slots)                    one step, or in place at the bounds
    index.window(slots, offsets) -> (slots, inside)    `[n, W]` neighbours, held at the bounds
    index.unfinished() -> (slots, lanes)               newest rows without an end flag
    index.trajectories() -> Slices                     all of them, lane after lane, oldest first
    index.count(min_length)                            how many are that long
    index.draw_starts(slice_len, uniforms) -> Slices   slices within fragments
    index.draw_trajectory(uniforms) -> Slices          whole fragments
    Slices(start, stop, length, lane)

**Costs.** Writing n rows: O(n), whatever they overwrite. Queries and draws of n: O(n + lanes), whatever is stored. The
first draw with another slice length looks once at all fragments. A rewrite that moves a boundary in the middle of the
ring makes the next call lay all rows out anew; one that does not, or only ends the newest row, costs O(n).

`find_start_stop_traj` (here too, from `episode_recovery`) recovers the same fragments from whole columns, without an
index.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from replay_service.buffer.episode_columns import Column, as_column, as_integers, flat_integers, per_lane
from replay_service.buffer.episode_recovery import find_start_stop_traj
from replay_service.buffer.episode_table import EpisodeTable
from replay_service.buffer.episode_view import Bounds, EpisodeView, Slices

__all__ = ["Bounds", "EpisodeIndex", "EpisodeView", "Slices", "find_start_stop_traj"]

Ints = NDArray[np.int64]


class EpisodeIndex(EpisodeView):
    """Bounds of all stored rows, kept up to date as rows are written; see the module for rules, interface and costs.

    Args:
        capacity: rows of each lane.
        lanes: rings beside each other.
        dense_limit: up to this many rows in all, memory is set aside at once; above, as rows come.

    Raises:
        ValueError: `capacity` or `lanes` is below one.
    """

    def __init__(self, capacity: int, lanes: int = 1, *, dense_limit: int = 1 << 24) -> None:
        for name, number in (("capacity", capacity), ("lanes", lanes)):
            if number < 1:
                raise ValueError(f"{name} ({number}) must be at least 1")
        super().__init__(EpisodeTable(capacity, lanes, dense_limit))

    def write(self, slots: ArrayLike, *, ends: ArrayLike | None = None, ids: ArrayLike | None = None) -> None:
        """Takes note of rows that were written to every lane, at consecutive slots from the cursor on.

        Args:
            slots: int64 `[n]` in write order, going on at 0 after the last slot. As many as `capacity` or more may
                begin anywhere: they leave nothing of what was there.
            ends: end flags `[n]` or `[n, lanes]`.
            ids: trajectory ids `[n]` or `[n, lanes]`.

        Raises:
            TypeError: both or neither of `ends` and `ids`, or slots that are not integers.
            ValueError: slots that do not follow the cursor, another shape, or ids after flags.
        """
        table, column = self._table, as_column(ends, ids)
        slots = as_integers("slots", slots)
        if slots.ndim != 1:
            raise ValueError(f"slots must be [n]; got the shape {list(slots.shape)}")
        column = self._checked(column.flat((slots.size, self.lanes)))
        if slots.size == 0:
            return
        cursor, length = self.cursor, self.length
        replaces_all = slots.size >= self.capacity
        first = int(slots[0]) if replaces_all else cursor
        if not (0 <= first < self.capacity and np.array_equal(slots, (first + np.arange(slots.size)) % self.capacity)):
            raise ValueError(
                f"slots ({slots[0]}…{slots[-1]}) must be {slots.size} consecutive ones from the cursor {cursor} on; "
                "call rewrite for rows that are stored, rebuild after a jump"
            )
        if replaces_all:
            # Only the last `capacity` rows are left in the end, and nothing of what came before.
            slots = slots[-self.capacity :]
            column = Column(column.kind, column.values[-self.capacity * self.lanes :])
            table.reserve(self.capacity)
            table.clear(np.arange(self.lanes))
            table.move_cursors(int(slots[0]))
        table.reserve(length + slots.size)
        self._append(self._every_lane(slots.size), column)

    def append(self, lanes: ArrayLike, *, ends: ArrayLike | None = None, ids: ArrayLike | None = None) -> Ints:
        """Writes row i to lane `lanes[i]`, at that lane's own cursor; returns the slots int64 `[n]`.

        Args:
            lanes: int64 `[n]`; a lane named several times gets its rows in this order.
            ends: end flags `[n]`.
            ids: trajectory ids `[n]`.

        Raises:
            TypeError: both or neither of `ends` and `ids`, or lanes that are not integers.
            IndexError: a lane that does not exist.
            ValueError: another shape, or ids after flags.
        """
        column = as_column(ends, ids)
        lane_of = self._lanes_in_range(as_integers("lanes", lanes).reshape(-1))
        column = self._checked(column.flat((lane_of.size,)))
        most = self._table.lengths + np.bincount(lane_of, minlength=self.lanes)
        self._table.reserve(int(most.max()))
        return self._append(lane_of, column)

    def rewrite(
        self,
        slots: ArrayLike,
        *,
        ends: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        lanes: ArrayLike | None = None,
    ) -> None:
        """Takes note of stored rows whose flags or ids were changed in place, in any order; the last of one slot
        counts.

        Args:
            slots: int64 `[n]`.
            ends: end flags `[n]`, or `[n, lanes]` if `lanes` is None.
            ids: trajectory ids, likewise.
            lanes: int64 `[n]`, the lane of each row; None: these slots of every lane.

        Raises:
            TypeError: both or neither of `ends` and `ids`, or slots that are not integers.
            IndexError: a row that is not stored; nothing is changed then.
            ValueError: another shape, or ids where flags were written.
        """
        table, column = self._table, as_column(ends, ids)
        flat = as_integers("slots", slots).reshape(-1)
        if lanes is None:
            column = self._checked(column.flat((flat.size, self.lanes)))
            lane_of, flat = self._every_lane(flat.size), np.repeat(flat, self.lanes)
        else:
            column = self._checked(column.flat((flat.size,)))
            lane_of = flat_integers(np.broadcast_to(as_integers("lanes", lanes).reshape(-1), flat.shape))
        flat = flat_integers(flat)
        self._refuse_unstored(table.rewrite(column.kind, lane_of, flat, column.values), lane_of, flat)

    def cut(self, lanes: ArrayLike | None = None) -> None:
        """Ends the fragment of the newest row of each lane (of `lanes`, or all), whatever its flag or id: what is
        written next belongs to another one. For rows from another source, and for an episode that was given up
        half-way.

        Raises:
            IndexError: a lane that does not exist.
        """
        self._table.cut(self._some_lanes(lanes))

    def is_cut(self) -> NDArray[np.bool_]:
        """Whether what is written next belongs to another fragment because of `cut`, for each lane; bool `[lanes]`."""
        return self._table.is_cut(np.arange(self.lanes))

    def clear(self, lanes: ArrayLike | None = None) -> None:
        """Forgets all rows, of `lanes` or of all lanes; they begin at slot 0 again.

        Raises:
            IndexError: a lane that does not exist.
        """
        self._table.clear(self._some_lanes(lanes))
        if lanes is None:
            self._table.forget_ids()
            self._marked_by = None

    def rebuild(
        self, *, ends: ArrayLike | None = None, ids: ArrayLike | None = None, cursor: ArrayLike, length: ArrayLike
    ) -> None:
        """Replaces everything by whole columns, as they are after loading; cuts that no column shows are lost.

        Args:
            ends: end flags `[T]` or `[T, lanes]` by slot, at least as many as rows are stored.
            ids: trajectory ids, likewise.
            cursor: next slot to write, one for all or `[lanes]`.
            length: stored rows, likewise. Lanes that are not full are filled from slot 0 on.

        Raises:
            TypeError: both or neither of `ends` and `ids`.
            ValueError: a cursor or length that no ring can have, or too few rows.
        """
        column = as_column(ends, ids)
        cursors, lengths = self._checked_fill(cursor, length)
        rows, given = int(lengths.max()), column.values.shape
        if len(given) < 1 or given[0] < rows:
            raise ValueError(f"{column.kind} {list(given)} must have at least the {rows} stored rows")
        if rows == 0:
            self.clear()
            return
        values = column._replace(values=column.values[:rows]).flat((rows, self.lanes)).values
        by_lane = values.reshape(rows, self.lanes).T
        self._table.replace_columns(column.kind, by_lane, cursors, lengths)
        self._marked_by = column.kind

    def state_dict(self) -> dict[str, Any]:
        """All there is to know, copied: sizes, `marked_by`, cursors and lengths int64 `[lanes]`, marks uint8 and ids
        int64 `[lanes, rows]` (ids None with flags), as torch tensors."""
        marks, ids = self._table.copies()
        return {
            "capacity": self.capacity,
            "marked_by": self._marked_by,
            "cursors": torch.from_numpy(self.cursors),
            "lengths": torch.from_numpy(self.lengths),
            "marks": torch.from_numpy(marks),
            "ids": torch.from_numpy(ids) if ids is not None and self._marked_by == "ids" else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces everything by a copy of what `state_dict` gave.

        Raises:
            ValueError: another number of rows or lanes, or a state that is not whole; nothing is changed then.
        """
        keys = ("capacity", "marked_by", "cursors", "lengths", "marks", "ids")
        missing = [key for key in keys if key not in state]
        if missing:
            raise ValueError(f"state must have the keys {list(keys)}; {missing} are missing")
        marks = np.asarray(state["marks"], np.uint8)
        ids = None if state["ids"] is None else np.asarray(state["ids"], np.int64)
        if state["capacity"] != self.capacity or marks.ndim != 2 or marks.shape[0] != self.lanes:
            raise ValueError(
                f"state must be that of {self.lanes} lanes of {self.capacity} rows; got marks {list(marks.shape)} "
                f"of capacity {state['capacity']}"
            )
        cursors, lengths = self._checked_fill(state["cursors"], state["lengths"])
        if marks.shape[1] != lengths.max() or (ids is None) != (state["marked_by"] != "ids"):
            raise ValueError(f"state must have {lengths.max()} marks a lane, and ids exactly if marked by them")
        if ids is not None and ids.shape != marks.shape:
            raise ValueError(f"ids {list(ids.shape)} must have the shape {list(marks.shape)} of the marks")
        self._table.replace(marks, ids, cursors, lengths)
        self._marked_by = state["marked_by"]

    def _append(self, lane_of: Ints, column: Column) -> Ints:
        slots = self._table.append(column.kind, lane_of, column.values)
        if slots.size:
            self._marked_by = column.kind
        return slots

    def _checked(self, column: Column) -> Column:
        if self._marked_by not in (None, column.kind):
            raise ValueError(
                f"{column.kind} must not follow {self._marked_by}; mark all rows by one of them, or clear() before"
            )
        return column

    def _checked_fill(self, cursor: ArrayLike, length: ArrayLike) -> tuple[Ints, Ints]:
        cursors, lengths = per_lane("cursor", cursor, self.lanes), per_lane("length", length, self.lanes)
        if (lengths < 0).any() or (lengths > self.capacity).any():
            raise ValueError(f"length ({lengths.tolist()}) must be at least 0 and at most {self.capacity}")
        full = lengths == self.capacity
        if (full & ((cursors < 0) | (cursors >= self.capacity))).any() or (~full & (cursors != lengths)).any():
            raise ValueError(
                f"cursor ({cursors.tolist()}) must be below {self.capacity} in a full lane and the length in another; "
                f"got the lengths {lengths.tolist()}"
            )
        return cursors, lengths

    def _every_lane(self, rows: int) -> Ints:
        """The lane of each of `[rows, lanes]` values, flattened."""
        return np.tile(np.arange(self.lanes), rows) if self.lanes > 1 else np.zeros(rows, np.int64)

    def _some_lanes(self, lanes: ArrayLike | None) -> Ints:
        if lanes is None:
            return np.arange(self.lanes)
        return self._lanes_in_range(as_integers("lanes", lanes).reshape(-1))

    def _lanes_in_range(self, lane_of: Ints) -> Ints:
        wrong = (lane_of < 0) | (lane_of >= self.lanes)
        if wrong.any():
            raise IndexError(f"lane ({lane_of[wrong][0]}) must be at least 0 and below {self.lanes}")
        return flat_integers(lane_of)
