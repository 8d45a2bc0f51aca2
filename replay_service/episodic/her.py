"""Buffers that give drawn episodes goals in hindsight."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from replay_service.episodic.batch import Batch
from replay_service.episodic.hindsight import Hindsight, RewardFunction
from replay_service.episodic.parts import ReadOptions
from replay_service.episodic.replay_buffer import EpisodicBuffer, ReplayBuffer, ring_size, seed_of
from replay_service.episodic.saving import BufferSaving
from replay_service.episodic.vector import VectorReplayBuffer, bank_of
from replay_service.errors import LayoutError, key_name

__all__ = ["HERReplayBuffer", "HERVectorReplayBuffer"]

Ints = NDArray[np.int64]

GOALS = ("observation", "achieved_goal", "desired_goal")


class GoalCalls(BufferSaving):
    """Goals are rewritten where they are stored with every draw, and are as before after the next call that writes, draws
    or saves: reads in between (n-step returns) see the same goals and rewards as the batch that was drawn."""

    _hindsight: Hindsight

    def rewrite_transitions(self, index: ArrayLike) -> None:
        """Rewrites episodes of these steps, as a draw of them would."""
        with self.lock:
            self._relabel(self._slots_of(index).reshape(-1))

    def restore(self) -> None:
        """Undoes what the latest draw rewrote."""
        with self.lock:
            self._settle()

    def _kept(self, content: dict[str, Any]) -> dict[str, Any]:
        """Asks for the goals already where steps come in: a draw that misses them would be too late."""
        content = super()._kept(content)
        for entry in ("obs", "obs_next"):
            given = content.get(entry, dict.fromkeys(GOALS))  # obs_next may be left out
            names = list(given.keys()) if isinstance(given, Batch | dict) else []
            missing = [goal for goal in GOALS if goal not in names]
            if missing:
                raise LayoutError(
                    f"{key_name((entry, missing[0]))} (missing) must be in every step of a buffer with goals; "
                    f"got {names or 'no dictionary'}"
                )
        return content

    def _settle(self) -> None:
        self._hindsight.restore()

    def _relabel(self, slots: Ints) -> None:
        if slots.size:
            self._hindsight.rewrite(slots, self._rings, self._store, self._random)


class HERReplayBuffer(GoalCalls, ReplayBuffer):
    """As `ReplayBuffer`, for environments with goals: `obs` (and `obs_next`) hold `observation`, `achieved_goal` and
    `desired_goal`. With every draw most of the episodes that steps are drawn of get a goal that they reach later.

    Args:
        size: steps.
        compute_reward_fn: from achieved and desired goals `[n, …]` to rewards `[n]`.
        horizon: most steps of an episode.
        future_k: of `future_k` drawn episodes, `future_k - 1` are rewritten.
        stack_num, ignore_obs_next, save_only_last_obs, sample_avail, random_seed, service: as for `ReplayBuffer`.

    Raises:
        TypeError, ValueError: a number that is none or out of range.
    """

    def __init__(
        self,
        size: int,
        compute_reward_fn: RewardFunction,
        horizon: int,
        future_k: float = 8.0,
        stack_num: int = 1,
        ignore_obs_next: bool = False,
        save_only_last_obs: bool = False,
        sample_avail: bool = False,
        random_seed: int | torch.Generator = 42,
        **service: Any,
    ) -> None:
        options = ReadOptions(stack_num, ignore_obs_next, save_only_last_obs, sample_avail, seed_of(random_seed))
        made_with: dict[str, Any] = {"size": size, "compute_reward_fn": compute_reward_fn}
        made_with.update(horizon=horizon, future_k=future_k)
        self._hindsight = Hindsight(compute_reward_fn, horizon, future_k)
        EpisodicBuffer.__init__(self, made_with, options, [(ring_size(size), 1)], service=service)


class HERVectorReplayBuffer(HERReplayBuffer, VectorReplayBuffer):
    """As `VectorReplayBuffer`, with goals in hindsight as `HERReplayBuffer`.

    Args:
        total_size, buffer_num: as for `VectorReplayBuffer`.
        compute_reward_fn, horizon, future_k: as for `HERReplayBuffer`.
        stack_num, ignore_obs_next, save_only_last_obs, sample_avail, random_seed, service: as for `ReplayBuffer`.
    """

    def __init__(
        self,
        total_size: int,
        buffer_num: int,
        compute_reward_fn: RewardFunction,
        horizon: int,
        future_k: float = 8.0,
        stack_num: int = 1,
        ignore_obs_next: bool = False,
        save_only_last_obs: bool = False,
        sample_avail: bool = False,
        random_seed: int | torch.Generator = 42,
        **service: Any,
    ) -> None:
        options = ReadOptions(stack_num, ignore_obs_next, save_only_last_obs, sample_avail, seed_of(random_seed))
        made_with: dict[str, Any] = {"total_size": total_size, "buffer_num": buffer_num}
        made_with.update(compute_reward_fn=compute_reward_fn, horizon=horizon, future_k=future_k)
        self._hindsight = Hindsight(compute_reward_fn, horizon, future_k)
        EpisodicBuffer.__init__(self, made_with, options, [bank_of(total_size, buffer_num)], service=service)
