"""Returns over several steps."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from replay_service.buffer.counts import positive_integer
from replay_service.buffer.trajectory import NEXT
from replay_service.specs import Key
from replay_service.transforms.runs import Runs
from replay_service.transforms.transform import Keys, Transform, copied, entry, keys_of

__all__ = ["MultiStep"]


class MultiStep(Transform):
    """Makes `n`-step transitions of neighbouring single steps.

    Step `t` of a run that ends at step `e` looks `k = min(n_steps, e - t + 1)` steps ahead. Its rewards become
    `sum of gamma**i * reward[t + i] for i < k`, and everything else under `next`, end flags included, becomes what step `t + k - 1` led
    to: at the end of a trajectory or slice the true last observation, after less steps. So that a target is right in any case, the batch
    gets `gamma`, `gamma**k` (float32 `[B, 1]`), by which the value of the next observation is to be multiplied, `steps_to_next_obs`
    (`k`, int64 `[B, 1]`), and under `next`, beside each reward, the single step's own as `original_<name>`.

    Batches are as for `CatFrames`. On samples it works on slices and windows; with `append_transform(…, invert=True)` on what is
    extended, and then random samples are `n`-step transitions (those at the end of an extended batch of less steps). Sutton & Barto,
    Reinforcement Learning, 2nd edition, section 7.1.

    Args:
        n_steps: how many steps to look ahead, at least 1.
        gamma: discount factor, from 0 to 1.
        reward_keys: entries under `next` that are summed up; None: `("next", "reward")`.
        done_key, done_keys: the end flags; None: those of `Runs.of`.

    Raises:
        TypeError, ValueError: a number is out of range, a reward that is not under `next`, or `done_key` and `done_keys` are both given.
    """

    def __init__(
        self,
        n_steps: int,
        gamma: float,
        *,
        reward_keys: Keys | None = None,
        done_key: str | Key | None = None,
        done_keys: Keys | None = None,
    ) -> None:
        self.n_steps = positive_integer(n_steps, "n_steps")
        if not (math.isfinite(gamma) and 0 <= gamma <= 1):
            raise ValueError(f"gamma ({gamma}) must be from 0 to 1")
        if done_key is not None and done_keys is not None:
            raise ValueError("done_key and done_keys must not be given together")
        self.gamma = float(gamma)
        self.reward_keys = keys_of("reward_keys", reward_keys, [(NEXT, "reward")])
        outside = next((key for key in self.reward_keys if key[0] != NEXT or len(key) < 2), None)
        if outside is not None:
            raise ValueError(f"reward_keys ({outside}) must lie under {NEXT!r}, where what a step led to is")
        ends = done_keys if done_key is None else [done_key]
        self.done_keys = None if ends is None else keys_of("done_keys", ends)

    def forward(self, data: Any) -> Any:
        """The batch of `n`-step transitions, as many as there were steps.

        Raises:
            KeyError: a reward is missing, or nothing says where trajectories end.
            ValueError: a single record, which has no neighbours.
        """
        made = copied(self, data)
        if not made.ndim:
            raise ValueError("data must be a batch of neighbouring steps; got a single record")
        batch = made.batch_size
        runs = Runs.of(made, self.done_keys)
        steps = torch.arange(runs.last.numel(), device=runs.last.device)
        final = torch.minimum(steps + self.n_steps - 1, runs.last)
        led_to = made.get(NEXT).reshape(-1)[final].reshape(batch)
        for key in self.reward_keys:
            reward = entry(data, key)
            led_to.set(key[1:], self._returns(reward.flatten(0, len(batch) - 1), runs).reshape(reward.shape))
            led_to.set((*key[1:-1], f"original_{key[-1]}"), reward)
        made.set(NEXT, led_to)
        ahead = (final - steps + 1).reshape(*batch, 1)
        made.set("steps_to_next_obs", ahead)
        made.set("gamma", torch.pow(self.gamma, ahead.double()).float())
        return made

    def _returns(self, reward: Tensor, runs: Runs) -> Tensor:
        """The discounted sums of rewards `[n, *shape]`, in their dtype; the sums themselves are float64."""
        steps = torch.arange(reward.shape[0], device=reward.device)
        last = runs.last.to(reward.device)
        total = torch.zeros_like(reward, dtype=torch.float64)
        for ahead in range(min(self.n_steps, reward.shape[0])):
            there = (steps + ahead <= last).view(-1, *[1] * (reward.ndim - 1))
            later = reward[torch.minimum(steps + ahead, last)].to(torch.float64)
            total += torch.where(there, self.gamma**ahead * later, 0.0)
        return total.to(reward.dtype if reward.is_floating_point() else torch.float32)

    def __repr__(self) -> str:
        return f"MultiStep(n_steps={self.n_steps}, gamma={self.gamma})"
