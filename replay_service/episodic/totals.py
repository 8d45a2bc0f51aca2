"""Reward, length and first slot of the episode that runs in each ring."""

from __future__ import annotations

import math
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["EpisodeTotals", "Reports"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Reports(NamedTuple):
    """What `add` says of each step: totals of the episodes that ended with it, zeros for the others, and first slots."""

    returns: Floats
    lengths: Ints
    starts: Ints


@cache
def _kernels() -> ModuleType:
    # Not at the top: numba is loaded by the first step that is added.
    from replay_service.episodic import totals_kernels

    return totals_kernels


class EpisodeTotals:
    """Counts on across the edge of a ring, also where the head of an episode is overwritten already.

    Args:
        first_slots: int64 `[rings]`: the first slot of each ring.
    """

    def __init__(self, first_slots: Ints) -> None:
        self._first_slots = first_slots.copy()
        self._episodes: Ints = np.zeros((first_slots.size, 2), np.int64)
        self._running: Floats | None = None
        self.clear(False)

    def add(self, ring_of: Ints, slots: Ints, rewards: Floats, ends: NDArray[np.bool_]) -> Reports:
        """Counts steps: `rewards` float64 `[n, *shape]`, the others `[n]`, contiguous; the last argument is the end flags."""
        flat = rewards.reshape(ring_of.size, math.prod(rewards.shape[1:]))
        if self._running is None or self._running.shape[1] != flat.shape[1]:
            self._running = np.zeros((self._first_slots.size, flat.shape[1]))
        returns, found = np.empty(flat.shape), np.empty((ring_of.size, 2), np.int64)
        _kernels().count(ring_of, slots, flat, ends, self._running, self._episodes, returns, found)
        return Reports(returns.reshape(rewards.shape), found[:, 0].copy(), found[:, 1].copy())

    def clear(self, keep_statistics: bool) -> None:
        """Forgets where episodes began and, unless they are to be kept, the running totals."""
        self._episodes[:, 1] = self._first_slots
        if not keep_statistics:
            self.restart(np.arange(self._first_slots.size))

    def restart(self, rings: Ints) -> None:
        """The next step of each of these rings is the first of its episode."""
        self._episodes[rings, 0] = 0
        if self._running is not None:
            self._running[rings] = 0.0

    def begun_at(self, ring: int, slot: int) -> None:
        """The episode that runs in `ring` began at `slot`, whatever was counted of it."""
        self._episodes[ring, 1] = slot

    def running(self, ring: int) -> bool:
        """Whether an episode runs in `ring`."""
        return bool(self._episodes[ring, 0])

    def state_dict(self) -> dict[str, Any]:
        """Copies of all totals."""
        state: dict[str, Any] = {"episodes": self._episodes.copy()}
        return state if self._running is None else {**state, "running": self._running.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave, by copy; `ValueError` for totals of other rings."""
        rings = self._first_slots.size
        episodes = np.array(state["episodes"], np.int64)
        running = np.array(state["running"], np.float64) if "running" in state else None
        if episodes.shape != (rings, 2) or (running is not None and (running.ndim != 2 or len(running) != rings)):
            raise ValueError(f"totals must be those of {rings} rings; got {list(episodes.shape)}")
        self._episodes, self._running = episodes, running
