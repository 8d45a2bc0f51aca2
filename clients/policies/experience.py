"""What an off-policy learner needs of a batch, whichever kind of buffer it came from, and what it gives back.

A batch of an episodic buffer has "obs", "act", "rew", "terminated", "obs_next", perhaps "weight", and for n-step returns
"n_step" (`replay_service.episodic.returns.with_n_step`). A TensorDict has "observation", "action" and, below "next",
"observation", "reward", "terminated", perhaps "priority_weight", and "gamma" where `MultiStep` has made n-step transitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from replay_service.episodic.batch import Batch

__all__ = ["Experience", "answer", "experience_of", "note_errors", "observations_of", "tensors"]


@dataclass(frozen=True)
class Experience:
    """Tensors on the learner's device.

    observation, next_observation: `[B, *obs]`, or batches of such where observations are nested. action: `[B, *act]`.
    reward: float32 `[B]`, summed over the steps of an n-step return. discount: float32 `[B]`, by which the value of the next
    observation counts, 0 where nothing comes after it. weight: float32 `[B]` of each row in the loss, or None.
    """

    observation: Any
    action: Tensor
    reward: Tensor
    next_observation: Any
    discount: Tensor
    weight: Tensor | None

    def target(self, next_value: Tensor) -> Tensor:
        """Returns `[B]` where the next observations are worth `next_value` `[B]`."""
        return self.reward + self.discount * next_value

    def weighted_mean(self, loss: Tensor) -> Tensor:
        """Mean of a loss `[B]`, each row with its weight."""
        return (loss if self.weight is None else loss * self.weight).mean()


def experience_of(batch: Any, gamma: float, device: torch.device) -> Experience:
    """The tensors of `batch`; raises KeyError where a column is missing. gamma: discount of single steps."""
    if not isinstance(batch, Batch):
        following = batch["next"]
        reward = _column(following["reward"], device)
        discount = ~following["terminated"].to(device).reshape(reward.shape) * _gamma(batch, gamma, device)
        return Experience(
            observation=batch["observation"].to(device),
            action=batch["action"].to(device),
            reward=reward,
            next_observation=following["observation"].to(device),
            discount=discount,
            weight=_optional(batch.get("priority_weight", None), device),
        )
    ahead = batch.get("n_step")
    if ahead is not None:
        reward, discount = _column(ahead["rew"], device), _column(ahead["discount"], device)
    else:
        reward = _column(batch["rew"], device)
        over = batch["terminated"] if "terminated" in batch else batch["done"]
        discount = gamma * ~tensors(over, device).reshape(reward.shape).bool()
    return Experience(
        observation=tensors(batch["obs"], device),
        action=tensors(batch["act"], device),
        reward=reward,
        next_observation=tensors((batch if ahead is None else ahead)["obs_next"], device),
        discount=discount.to(reward.dtype),
        weight=_optional(batch.get("weight"), device),
    )


def note_errors(batch: Any, errors: Tensor) -> None:
    """Write temporal-difference errors `[B]` where `Policy.post_process_fn` looks for new priorities."""
    magnitude = errors.detach().abs()
    if not isinstance(batch, Batch):
        batch["td_error"] = magnitude.to(batch["action"].device)
    elif "weight" in batch:  # only then it was drawn by priority
        batch["weight"] = magnitude.cpu().double().numpy()


def observations_of(data: Any, device: torch.device) -> Any:
    """Observations `[N, *obs]` to act on: those of a Batch or of a TensorDict."""
    return tensors(data["obs"] if isinstance(data, Batch) else data["observation"], device)


def answer(data: Any, act: Tensor, **more: Any) -> Any:
    """Actions in the kind of `data`: a Batch of "act", or a TensorDict of "action"; `more` under its own names.

    "act" is a NumPy array: one of its rows is what `step` of a Gymnasium environment takes, a tensor would not be.
    """
    if isinstance(data, Batch):
        return Batch.wrap({"act": act.detach().cpu().numpy(), **more})
    return TensorDict({"action": act, **more}, batch_size=act.shape[:1])


def tensors(value: Any, device: torch.device) -> Any:
    """An array as a tensor on `device`, nested ones at any depth."""
    if isinstance(value, Batch):
        return value.to_torch(device=device)
    return value.to(device) if hasattr(value, "to") else torch.as_tensor(value, device=device)


def _column(value: Any, device: torch.device) -> Tensor:
    column: Tensor = tensors(value, device).float()
    return column.reshape(column.shape[0], -1)[:, 0] if column.ndim > 1 else column


def _optional(value: Any, device: torch.device) -> Tensor | None:
    return None if value is None else _column(value, device)


def _gamma(batch: Any, gamma: float, device: torch.device) -> Tensor | float:
    given = batch.get("gamma", None)
    return gamma if given is None else _column(given, device)
