"""Hindsight: drawn episodes are given goals that they did reach later on (Andrychowicz et al., 2017, arXiv:1707.01495)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from replay_service.episodic.columns import StepColumn
from replay_service.episodic.rings import Rings
from replay_service.episodic.store import StepStore

__all__ = ["Hindsight", "RewardFunction"]

Ints = NDArray[np.int64]
RewardFunction = Callable[[Any, Any], Any]
"""From achieved and desired goals `[n, …]` to rewards `[n]`."""


class Hindsight:
    """Rewrites goals and rewards of drawn episodes in place, so that n-step returns over them are right, and undoes it.

    Args:
        reward_fn: gives the rewards of achieved and desired goals.
        horizon: most steps of an episode that are rewritten, from its first drawn one on.
        future_k: of `future_k` drawn episodes, `future_k - 1` are rewritten; infinity: all.

    Raises:
        ValueError: `horizon` below 1, or `future_k` below 1.
    """

    def __init__(self, reward_fn: RewardFunction, horizon: int, future_k: float) -> None:
        if horizon < 1:
            raise ValueError(f"horizon ({horizon}) must be at least 1")
        if not future_k >= 1:
            raise ValueError(f"future_k ({future_k}) must be at least 1")
        self._reward_fn = reward_fn
        self._horizon = horizon
        self._share = 1.0 - 1.0 / future_k
        self._changed: list[tuple[StepColumn, Ints, Any]] = []

    def restore(self) -> None:
        """Undoes the latest rewriting."""
        for column, slots, rows in self._changed:
            column.write(slots, rows)
        self._changed = []

    def rewrite(self, slots: Ints, rings: Rings, store: StepStore, random: np.random.RandomState) -> None:
        """Rewrites episodes of the drawn steps `slots` int64 `[n]`.

        The share `1 - 1 / future_k` of the distinct episodes is chosen; a fraction of an episode is one with that
        chance. The goal of a chosen one is what was achieved after one of its steps, each as likely, from its last drawn
        one to its end. It replaces the goals, and rewards follow, from its first drawn step to its end.
        """
        self.restore()
        starts, lengths, positions = rings.runs_of(slots)
        episodes, place = np.unique(starts, return_inverse=True)
        first, last = np.full(episodes.size, rings.size), np.zeros(episodes.size, np.int64)
        np.minimum.at(first, place, positions)
        np.maximum.at(last, place, positions)
        end = np.zeros(episodes.size, np.int64)
        end[place] = lengths - 1
        end = np.minimum(end, first + self._horizon - 1)
        last = np.minimum(last, end)
        wanted = episodes.size * self._share
        count = int(wanted) + int(random.random_sample() < wanted - int(wanted))
        if count == 0:
            return
        chosen = random.permutation(episodes.size)[:count]
        episodes, first, last, end = episodes[chosen], first[chosen], last[chosen], end[chosen]
        future = last + (random.random_sample(count) * (end - last + 1)).astype(np.int64)
        steps = end - first + 1
        row = np.repeat(np.arange(count), steps)
        within = np.arange(row.size) - np.repeat(np.cumsum(steps) - steps, steps)
        self._write(rings.along(episodes[row], first[row] + within), rings.along(episodes, future)[row], rings, store)

    def _write(self, slots: Ints, future: Ints, rings: Rings, store: StepStore) -> None:
        """Gives the steps `slots` the goals achieved after the steps `future`."""
        has_next = store.has(("obs_next",))
        after = ("obs_next", "achieved_goal") if has_next else ("obs", "achieved_goal")
        goals = store.read(after, future if has_next else rings.next(future))
        achieved = store.read(after, slots if has_next else rings.next(slots))
        rewards = self._reward_fn(achieved, goals)
        rewards = rewards.detach().cpu().numpy() if isinstance(rewards, Tensor) else np.asarray(rewards)
        columns = [store.column(("obs", "desired_goal"))]
        if has_next:
            columns.append(store.column(("obs_next", "desired_goal")))
        reward = store.column("rew")
        writes = [(column, column.fit(goals)) for column in columns]
        writes.append((reward, reward.fit(rewards.reshape(slots.size, *reward.shape))))
        self._changed = [(column, slots, column.read(slots)) for column, _ in writes]
        for column, rows in writes:
            column.write(slots, rows)
