"""A ring that takes whole episodes only, and caches in which they grow."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from replay_service.buffer.counts import positive_integer
from replay_service.episodic.incoming import Incoming
from replay_service.episodic.parts import ReadOptions
from replay_service.episodic.replay_buffer import SERVICE_SETTINGS, EpisodicBuffer, ReplayBuffer
from replay_service.episodic.writing import Added

__all__ = ["CachedReplayBuffer"]

Ints = NDArray[np.int64]

MAIN = 0
NOWHERE = -1


class CachedReplayBuffer(ReplayBuffer):
    """Slots are those of the main ring and, behind it, of every cache: `| main | cache 0 | cache 1 | … |`.

    Steps grow in the cache of their environment. With the last step of an episode the whole cache moves behind what is in
    the main ring, in the order of time; of an episode longer than the cache only its last steps do. Draws, indices and
    slices cover all of it.

    Args:
        main_buffer: an empty `ReplayBuffer`, whose size and settings are taken over; or the size alone.
        cached_buffer_num: caches.
        max_episode_length: steps of each cache.
        settings: others than those of `main_buffer`; and those of a service, as for `ReplayBuffer`.

    Raises:
        TypeError: `main_buffer` is no `ReplayBuffer` of one ring without priorities or goals.
        ValueError: it is not empty, or a number is not positive.
    """

    def __init__(
        self,
        main_buffer: ReplayBuffer | int,
        cached_buffer_num: int,
        max_episode_length: int,
        **settings: Any,
    ) -> None:
        service = {name: settings.pop(name) for name in SERVICE_SETTINGS if name in settings}
        if not isinstance(main_buffer, ReplayBuffer):
            main_buffer = ReplayBuffer(main_buffer)
        if type(main_buffer) is not ReplayBuffer:
            raise TypeError(
                f"main_buffer ({type(main_buffer).__name__}) must be a ReplayBuffer; give the buffer itself settings"
            )
        if len(main_buffer):
            raise ValueError(
                f"main_buffer ({len(main_buffer)} steps) must be empty; add the steps to the cached buffer"
            )
        caches = positive_integer(cached_buffer_num, "cached_buffer_num")
        length = positive_integer(max_episode_length, "max_episode_length")
        made_with = {"main_buffer": main_buffer, "cached_buffer_num": caches, "max_episode_length": length}
        options = ReadOptions(**{**main_buffer.options, **settings})
        EpisodicBuffer.__init__(self, made_with, options, [(main_buffer.maxsize, 1), (length, caches)], service=service)
        self.cached_buffer_num = caches

    @property
    def buffer_num(self) -> int:
        """Caches: the rings that steps can be added to."""
        return self._rings.number - 1

    @property
    def _takes_one(self) -> bool:
        return False

    def _append(self, steps: Incoming) -> Added:
        """Row by row of each cache, since an episode that ends makes room for the next one."""
        checked = self._store.check(self._kept(steps.content), steps.ring_of.size)
        if not steps.done_only:
            self._done_only = False
        rows = steps.ring_of.size
        slots, starts, lengths = (np.zeros(rows, np.int64) for _ in range(3))
        returns = np.zeros_like(steps.rewards)
        for turn in _turns(steps.ring_of):
            rings = steps.ring_of[turn] + 1
            slots[turn] = self._rings.append(rings, steps.ends[turn])
            self._store.write(slots[turn], checked.rows(turn))
            self._draws.written(slots[turn])
            rewards = np.ascontiguousarray(steps.rewards[turn])
            reports = self._totals.add(rings, slots[turn], rewards, steps.ends[turn])
            returns[turn], lengths[turn], starts[turn] = reports
            for row in turn[steps.ends[turn]]:
                starts[row], slots[row] = self._move(int(steps.ring_of[row]) + 1)
        self._written += rows
        return slots, returns, lengths, starts

    def _end(self, rings: Ints) -> None:
        super()._end(rings + 1)
        for ring in rings + 1:
            if self._rings.lengths[ring]:
                self._move(int(ring))

    def _move(self, ring: int) -> tuple[int, int]:
        """Moves a cache into the main ring; first and last slot there, `NOWHERE` if that has no room at all."""
        before = self._rings.order(ring)
        after = np.full(before.size, NOWHERE)
        if self._rings.edges[MAIN + 1]:
            after = self._rings.append(np.zeros(before.size, np.int64), self.done[before])
            self._store.copy(before, after)
            self._draws.written(after)
        self._rings.clear(np.array([ring]))
        self._draws.forgotten(before)
        return int(after[0]), int(after[-1])


def _turns(ring_of: Ints) -> list[Ints]:
    """Row numbers in groups, one after the other, in none of which a ring comes twice."""
    order = np.argsort(ring_of, kind="stable")
    grouped = ring_of[order]
    first = np.flatnonzero(np.diff(grouped, prepend=-1))
    turn = np.arange(order.size) - np.repeat(first, np.diff(first, append=order.size))
    return [np.sort(order[turn == number]) for number in range(int(turn.max(initial=-1)) + 1)]
