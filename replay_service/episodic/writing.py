"""Writing to an episodic buffer: steps, whole columns, the ends of episodes. A call that fails changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from replay_service.arguments import flag_of
from replay_service.episodic.batch import Batch
from replay_service.episodic.columns import as_rows, column_for
from replay_service.episodic.incoming import REQUIRED, Incoming, incoming, rings_of, with_flags
from replay_service.episodic.parts import RESERVED
from replay_service.episodic.reading import BufferReading
from replay_service.episodic.refusals import RefusedValueError
from replay_service.episodic.store import StepStore
from replay_service.errors import LayoutError

__all__ = ["Added", "BufferWriting"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Added = tuple[Ints, NDArray[np.float64], Ints, Ints]
"""Of each added step: slot, return and length of the episode it ends (zeros otherwise), first slot of its episode."""

FLAGS = ("terminated", "truncated", "done")


class BufferWriting(BufferReading):
    """The calls that write."""

    # -- steps ------------------------------------------------------------------------------------------------------

    def add(self, batch: Batch | Mapping[str, Any], buffer_ids: ArrayLike | None = None) -> Added:
        """Appends steps, all of them or none.

        Args:
            batch: `obs`, `act`, `rew` and either `done` or `terminated` and `truncated`; `obs_next`, `info`, `policy` and
                other entries as there are. One step without a leading dimension where the buffer has one ring and no
                ids are given; else `[R, …]`.
            buffer_ids: int64 `[R]`, the ring of each row; one named several times gets its rows in this order. None:
                rings 0, 1, … all once.

        Returns:
            Arrays `[R]`: slot; return (float64, `[R, k]` for k rewards a step) and length of the episode that ends with
            the row, zeros where none does; and the slot where its episode began.

        Raises:
            LayoutError: an entry is missing or has another shape than before, or there are not as many rows as ids.
            IndexError: an id of no ring.
        """
        with self.lock:
            ring_of = None if buffer_ids is None and self._takes_one else rings_of(buffer_ids, self.buffer_num)
            if self.maxsize == 0:
                raise ValueError("size (0) must be at least 1 to add steps")
            steps = incoming(batch, ring_of)
            self._settle()
            return self._append(steps)

    @property
    def _takes_one(self) -> bool:
        """Whether a step may come without a leading dimension."""
        return False

    def _append(self, steps: Incoming) -> Added:
        checked = self._store.check(self._kept(steps.content), steps.ring_of.size)
        if not steps.done_only:
            self._done_only = False
        slots = self._rings.append(steps.ring_of, steps.ends)
        self._store.write(slots, checked)
        self._draws.written(slots)
        self._written += slots.size
        return slots, *self._totals.add(steps.ring_of, slots, steps.rewards, steps.ends)

    def _kept(self, content: dict[str, Any]) -> dict[str, Any]:
        """What of `content`, rows `[n, …]`, is stored."""
        if self._options.ignore_obs_next:
            content.pop("obs_next", None)
        if self._options.save_only_last_obs:
            for name in ("obs", "obs_next"):
                if name in content:
                    content[name] = _last_frame(content[name])
        return content

    def end_episodes(self, buffer_ids: ArrayLike | None = None) -> None:
        """Ends the episodes that run in these rings (None: in all): their newest steps become truncated and done, and what
        is added next begins new ones. For environments that are reset in mid-episode.

        Raises:
            IndexError: an id of no ring. Nothing was changed.
        """
        with self.lock:
            rings = np.unique(rings_of(buffer_ids, self.buffer_num))
            self._settle()
            self._end(rings)

    def _end(self, rings: Ints) -> None:
        newest = self._rings.newest[rings[self._rings.lengths[rings] > 0]]
        newest = newest[~self.done[newest]] if newest.size else newest
        for name in ("truncated", "done"):
            if newest.size:
                self._store.column(name).write(newest, np.ones(newest.size, np.bool_))
        self._rings.mark(newest, np.ones(newest.size, np.bool_))
        self._totals.restart(rings)

    def update(self, buffer: BufferReading, apart: bool = False) -> Ints:
        """Appends the steps of another buffer, oldest to newest; that one stays as it is.

        The running totals of this buffer's own episode are not touched; its first slot is that of the episode which runs then.

        Args:
            buffer: any episodic buffer in this process.
            apart: set cuts before and behind, so that an unfinished episode here does not go on with what comes from
                there. False: what was unfinished is joined with it, as `add` would.

        Returns:
            The slots written, int64 `[n]`; some come twice if there is not room for all.

        Raises:
            LayoutError: the steps do not fit those stored here. Nothing was changed.
            NotImplementedError: this buffer has several rings, and no one can tell which is meant.
        """
        if not isinstance(buffer, BufferReading):
            raise TypeError(f"buffer ({buffer!r:.60}) must be an episodic buffer; got {type(buffer).__name__}")
        if self._rings.number > 1:
            raise NotImplementedError(
                "update must be called on a buffer with one ring; add the steps with buffer_ids here"
            )
        content, from_slots, opened = buffer.snapshot()
        with self.lock:
            if from_slots.size == 0 or self.maxsize == 0:
                return np.empty(0, np.int64)
            self._settle()
            if self._options.ignore_obs_next:
                content = {name: value for name, value in content.items() if name != "obs_next"}
            checked = self._store.check(content, from_slots.size)
            cuts = set(np.flatnonzero(np.isin(from_slots, opened)).tolist()) - {from_slots.size - 1}
            if apart:
                cuts |= {-1, from_slots.size - 1}
                self._totals.restart(np.zeros(1, np.int64))
            slots = self._append_runs(np.zeros(from_slots.size, np.int64), content["done"], cuts)
            self._store.write(slots, checked)
            self._draws.written(slots)
            self._written += slots.size
            self._done_only = self._done_only and buffer.speaks_of_done
            self._totals.begun_at(0, self._beginning(int(slots[-1])))
            return slots

    def _beginning(self, newest: int) -> int:
        """The first slot of the episode that the next step belongs to, in the ring of its newest step."""
        slot = np.array([newest])
        if self.done[newest] or self._rings.is_cut()[self._rings.ring_of(slot)].any():
            return int(self._rings.along(slot, np.ones(1, np.int64))[0])
        return int(self._rings.runs_of(slot)[0][0])

    @property
    def speaks_of_done(self) -> bool:
        """Whether steps came with `done` alone, which is then all that is shown of their ends."""
        return self._done_only

    def _append_runs(self, ring_of: Ints, ends: Bools, cuts: set[int]) -> Ints:
        """As `Rings.append`, with a cut behind each of the rows numbered `cuts` (-1: before the first)."""
        pieces, start = [np.empty(0, np.int64)], 0
        for cut in sorted(cuts):
            if cut >= start:
                pieces.append(self._rings.append(ring_of[start : cut + 1], ends[start : cut + 1]))
                start = cut + 1
            self._rings.cut(ring_of[max(cut, 0)][None])
        pieces.append(self._rings.append(ring_of[start:], ends[start:]))
        return np.concatenate(pieces)

    # -- everything -------------------------------------------------------------------------------------------------

    def reset(self, keep_statistics: bool = False) -> None:
        """Forgets all steps (and their priorities); memory, shapes and dtypes stay.

        Args:
            keep_statistics: running returns and lengths go on, for episodes that do.
        """
        keep = flag_of("keep_statistics", keep_statistics)
        with self.lock:
            self._settle()
            self._rings.clear()
            self._draws.forgotten(None)
            self._totals.clear(keep)

    def set_batch(self, batch: Batch | Mapping[str, Any]) -> None:
        """Replaces all columns by copies of entries `[maxsize, …]`; which slots count as stored stays as it is.

        Raises:
            AssertionError: other entries than the reserved ones, or another number of rows.
        """
        content = dict((batch if isinstance(batch, Batch) else Batch(batch)).items())
        if not set(content) <= set(RESERVED) or any(len(value) != self.maxsize for value in content.values()):
            raise AssertionError(
                f"batch ({ {name: len(value) for name, value in content.items()} }) must have {self.maxsize} rows of entries "
                f"among {list(RESERVED)}"
            )
        with self.lock:
            self._settle()
            missing = [name for name in REQUIRED if len(self) and name not in content]
            if missing:
                raise RefusedValueError(f"{missing[0]} (missing) must be among the entries while steps are stored")
            done_only = with_flags(content) if set(FLAGS) & set(content) else True
            for name in FLAGS:
                content.setdefault(name, np.zeros(self.maxsize, np.bool_))
            if content["done"].shape != (self.maxsize,):
                raise LayoutError(
                    f"done ({list(content['done'].shape)}) must be one flag for each of {self.maxsize} slots"
                )
            checked = StepStore(self.maxsize).check(content, self.maxsize)
            lengths, newest = self._rings.lengths, self._rings.newest
            self._done_only = done_only
            self._store.clear()
            self._store.write(np.arange(self.maxsize), checked)
            self._rings.rebuild(content["done"], lengths, newest + 1 - self._rings.edges[:-1])

    def set_array_at_key(self, seq: ArrayLike, key: str, index: Any = None, default_value: float | None = None) -> None:
        """Writes one entry of many steps; an entry that did not exist is made.

        Args:
            seq: `[maxsize, …]`, or one row for each step that `index` names.
            key: name of the entry.
            index: which steps, as for `buffer[index]`; None: all slots.
            default_value: of the other steps if the entry is new; None: NaN.

        Raises:
            ValueError: another number of rows, or an end flag, which only `add` and `end_episodes` set.
            TypeError: the entry is new, holds integers, and there is no `default_value`.
        """
        if not isinstance(key, str):
            raise TypeError(f"key ({key!r:.60}) must be the name of an entry; got {type(key).__name__}")
        values: Any = as_rows("seq", seq)
        if key in FLAGS:
            raise ValueError(f"key ({key!r}) must not be an end flag; use end_episodes")
        with self.lock:
            self._settle()
            slots = np.arange(self.maxsize) if index is None else self._slots_of(index).reshape(-1)
            if len(values) != slots.size:
                raise ValueError(f"seq ({len(values)} rows) must have one row for each of {slots.size} steps")
            if key not in self._store:
                column = column_for((key,), values, self.maxsize)
                if index is not None:
                    column.fill(default_value)
                fitting = column.fit(values)
                self._store.register([column])
            else:
                column = self._store.column(key)
                fitting = column.fit(values)
            column.write(slots, fitting)

    def dropnull(self) -> None:
        """Forgets steps with NaN or None in any entry; the others move together, oldest first in every ring, and keep
        their priorities. Where one is missing between two, these two belong to different episodes from then on."""
        with self.lock:
            self._settle()
            content, slots, opened = self.snapshot()
            kept = np.flatnonzero(~self._store.nulls(slots))
            if kept.size == slots.size:
                return
            before, rings = slots[kept], self._rings.ring_of(slots[kept])
            is_cut = (np.diff(kept, append=slots.size) > 1) & ~content["done"][kept]
            # What is added next goes on with the newest step of a ring, unless there was a cut behind it before.
            goes_on = np.isin(before, self._rings.newest[~self._rings.is_cut()])
            cuts = set(np.flatnonzero((is_cut | np.isin(before, opened)) & ~goes_on).tolist())
            self._rings.clear()
            after = self._append_runs(rings, content["done"][kept], cuts)
            rows = {name: column[kept] for name, column in content.items()}
            self._store.write(after, self._store.check(rows, kept.size))
            self._draws.keep(before, after)


def _last_frame(value: Any) -> Any:
    if isinstance(value, Batch | dict):
        return {name: _last_frame(part) for name, part in value.items()}
    if value.ndim < 2:
        raise LayoutError(
            f"obs ({list(value.shape)}) must have an axis of frames to keep the last of (save_only_last_obs)"
        )
    return value[:, -1]
