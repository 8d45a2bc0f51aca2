"""Reading an episodic buffer: steps by index, their neighbours, stacked frames, and draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replay_service.arguments import entry_key, positive_integer
from replay_service.episodic.batch import Batch
from replay_service.episodic.draws import checked_size
from replay_service.episodic.parts import RESERVED, BufferParts
from replay_service.episodic.plan import Plan
from replay_service.episodic.returns import check_n_step, episodic_return, n_step_rewards
from replay_service.errors import NoStepsError, key_name

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
            NoStepsError: some are to be drawn, and there is no step, or with `sample_avail` none with enough steps
                before it.
        """
        with self.lock:
            self._settle()
            slots = self._drawn(batch_size)
            self._relabel(slots)
            return slots

    def sample(self, batch_size: int | None, n_step: int | None = None, gamma: float = 0.99) -> tuple[Batch, Ints]:
        """Steps and their slots, `(buffer[slots], slots)`; as `sample_indices`.

        Args:
            batch_size: how many.
            n_step: add to the batch what an n-step return is made of: `n_step.rew` float64 `[n]`, the discounted rewards of
                up to so many steps, fewer where the episode goes no further; `n_step.obs_next`, what was seen after the
                last of them; and `n_step.discount` float64 `[n]`, by which the value of that counts, 0 where the episode
                terminated. None: nothing.
            gamma: discount per step, from 0 to 1.

        Raises:
            ValueError: `n_step` below 1, or `gamma` out of range. Nothing was drawn.
            NoStepsError: there is nothing to draw.
        """
        with self.lock:
            slots, plan = self.sample_plan(batch_size, n_step, gamma)
            return plan.build(), slots

    def sample_plan(self, batch_size: int | None, n_step: int | None = None, gamma: float = 0.99) -> tuple[Ints, Plan]:
        """Draws as `sample` does, and what it reads then; hold the lock until it is read."""
        if n_step is not None:
            check_n_step(n_step, gamma, "n_step")  # before anything is drawn
        slots = self.sample_indices(batch_size)
        plan = self._plan(slots)
        if n_step is not None:
            ahead = n_step_rewards(self, slots, n_step, gamma)
            after = self._next_observations(ahead.last)
            plan.entries["n_step"] = {"rew": ahead.rewards, "discount": ahead.discount, "obs_next": after}
        return slots, plan

    returns_in_sample = True
    """Whether `sample` can be asked for n-step returns."""

    def episodic_return(
        self,
        indices: Any = None,
        v_s_: Any = None,
        v_s: Any = None,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Returns and advantages, float64 `[n]` each, of steps in the order of time; see `returns.episodic_return`.

        Args:
            indices: slots int64 `[n]`; None: all, as `sample_indices(0)` gives them.
            v_s_, v_s: values `[n]` of what was seen after and at each step, or None.
            gamma, gae_lambda: from 0 to 1.

        Raises:
            NoStepsError: nothing was ever stored.
            ValueError: a number is out of range, or there is not one value for each step.
        """
        with self.lock:
            if "rew" not in self._store:
                raise NoStepsError("indices must name stored steps; got an empty buffer: add steps first")
            slots = self._available() if indices is None else self._slots_of(indices)
            return episodic_return(self, slots, v_s_, v_s, gamma, gae_lambda)

    def never_dense(self) -> bool:
        """Whether steps hold objects, and no sample of them can be made of tensors only."""
        return self._store.has_objects

    def _drawn(self, batch_size: int | None) -> Ints:
        batch_size = checked_size(batch_size)
        if batch_size is not None and batch_size < 0:
            return np.empty(0, np.int64)
        if batch_size == 0:
            return self._available()
        if batch_size is None:
            return self._random.permutation(self._available())
        if len(self) == 0:
            raise NoStepsError(f"batch_size ({batch_size}) must be 0 or less while nothing is stored; add steps first")
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
            raise NoStepsError(
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
        ring, and those before a cut (see `update`).

        Raises:
            NoStepsError: nothing was ever stored.
        """
        with self.lock:
            if "done" not in self._store:
                raise NoStepsError("buffer (empty) must have had a step to know an unfinished one; add steps first")
            return self._unfinished()

    def get_buffer_indices(self, start: int, stop: int) -> Ints:
        """Slots from `start` up to, not including, `stop`, over the edge of their ring if `stop` is below `start`.

        Raises:
            ValueError: the two lie in different rings.
        """
        with self.lock:
            edges = self._rings.edges
            for name, slot in (("start", start), ("stop", stop)):
                if isinstance(slot, bool) or not isinstance(slot, int | np.integer):
                    raise TypeError(f"{name} ({slot!r:.60}) must be a slot; got {type(slot).__name__}")
            inside = 0 <= start < self.maxsize and 0 < stop <= self.maxsize
            rings = np.searchsorted(edges, [start, stop - 1] if inside else [-1, -1], side="right") - 1
            if rings[0] != rings[1] or rings[0] < 0:
                raise ValueError(
                    f"start and stop ({start}, {stop}) must lie in the same ring; got rings that begin at {edges}"
                )
            first, last = edges[rings[0]], edges[rings[0] + 1]
        if stop >= start:
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
            NoStepsError: nothing was ever stored.
        """
        with self.lock:
            return self.plan(index).build()

    def plan(self, index: Any) -> Plan:
        """What `buffer[index]` reads; hold the lock until it is read."""
        return self._plan(self._slots_of(index))

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
            TypeError, ValueError: a key that is no name, or a `stack_num` that is no number of steps.
        """
        parts = entry_key("key", key)
        with self.lock:
            if default_value is not None and not self._store.has(parts):
                return default_value
            return self.entry_plan(index, parts, stack_num).build()["entry"]

    def entry_plan(self, index: Any, key: tuple[str, ...], stack_num: int | None) -> Plan:
        """What `get` reads, as `entry`; hold the lock until it is read."""
        if not self._store.has(key):
            raise KeyError(f"key ({key_name(key)}) must be one of {list(self._store.names)}")
        windows = self._windows(self._slots_of(index), self._frames(stack_num))
        plan = Plan()
        plan.entries["entry"] = self._store.reading(key, windows)
        return plan

    def hasnull(self) -> bool:
        """Whether any number of `buffer[:]` is NaN or any object there None."""
        with self.lock:
            return bool(self._store.nulls(self._available()).any())

    def isnull(self) -> Batch:
        """Where `buffer[:]` has NaN or None: a `Batch` of flags."""
        return self[:].isnull()

    def _unfinished(self) -> Ints:
        return self._rings.unfinished(self.done) if len(self) else np.empty(0, np.int64)

    def _frames(self, stack_num: int | None) -> int:
        """How many steps are stacked. More than there can be would only repeat the first one, at the cost of memory."""
        if stack_num is None:
            return self.stack_num
        most = max(self.maxsize, self.stack_num)
        if positive_integer(stack_num, "stack_num") > most:
            raise ValueError(f"stack_num ({stack_num}) must be at most {most}, the steps that there can be")
        return int(stack_num)

    def _windows(self, slots: Ints, stack_num: int) -> Ints:
        return slots if stack_num == 1 else self._rings.window(slots, np.arange(1 - stack_num, 1))

    def _plan(self, slots: Ints) -> Plan:
        """What is read of the steps at `slots`, all of which are stored."""
        if "obs" not in self._store:
            raise NoStepsError("index must name stored steps; got an empty buffer: add steps first")
        store, windows = self._store, self._windows(slots, self.stack_num)
        plan, hidden = Plan(), self._hidden
        entries = plan.entries
        for name in RESERVED:
            if name in store:
                if name not in hidden:
                    entries[name] = store.reading((name,), windows if name in STACKED else slots)
            elif name == "obs_next" and self._options.ignore_obs_next:
                entries[name] = self._next_observations(slots)
            elif name in STACKED:
                entries[name] = {}
        for name in store.names:
            if name not in RESERVED:
                entries[name] = store.reading((name,), slots)
        self._draws.decorate(entries, slots)
        return plan

    def _next_observations(self, slots: Ints) -> Any:
        """What is read as `obs_next` of steps; nothing if they have none."""
        if self._options.ignore_obs_next:
            return self._store.reading(("obs",), self._windows(self._rings.next(slots), self.stack_num))
        if "obs_next" in self._store:
            return self._store.reading(("obs_next",), self._windows(slots, self.stack_num))
        return {}

    def snapshot(self) -> tuple[Mapping[str, Any], Ints, Ints]:
        """A copy of all steps as they are stored, oldest to newest, ring by ring; their slots; and those of them that
        are open (`unfinished_index`)."""
        with self.lock:
            self._settle()
            slots = self._rings.order()
            content = {name: self._store.read((name,), slots) for name in self._store.names}
            return content, slots, self._unfinished()
