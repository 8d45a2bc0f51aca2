"""What policies have in common that learn temporal differences from single steps in any order."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from clients.policies.experience import Experience, experience_of
from clients.policy import Policy
from replay_service.episodic.batch import Batch
from replay_service.episodic.returns import with_n_step

__all__ = ["OffPolicy"]


class OffPolicy(Policy):
    """Targets `rewards + discount * value of the next observation`, over one step or several.

    Args:
        gamma: discount per step.
        tau: share of the online network that a target network takes over per update.
        n_step: steps that are summed up before the value counts. A buffer of TensorDicts makes n-step transitions itself
            (`MultiStep`), whatever this is.
        action_settings: see `Policy`.

    Raises:
        ValueError: gamma or tau outside (0, 1], or n_step below 1.
    """

    def __init__(self, *, gamma: float, tau: float, n_step: int = 1, **action_settings: Any) -> None:
        super().__init__(**action_settings)
        for name, value in (("gamma", gamma), ("tau", tau)):
            if not 0.0 < value <= 1.0:
                raise ValueError(f"{name} ({value}) must be above 0 and at most 1; got one outside (0, 1]")
        if n_step < 1:
            raise ValueError(f"n_step ({n_step}) must be at least 1; got {n_step}")
        self.gamma = gamma
        self.n_step = n_step
        self._tau = tau

    @property
    def sample_options(self) -> dict[str, Any]:
        """n-step returns in the reply of the sample."""
        return {"n_step": self.n_step, "gamma": self.gamma} if self.n_step > 1 else {}

    @abstractmethod
    def next_value(self, experience: Experience) -> Tensor:
        """What the next observations are worth, float32 `[B]`; called without gradients."""

    def process_fn(self, batch: Any, buffer: Any, indices: Any) -> Any:
        """Give a batch of an episodic buffer its "returns", float32 `[B]`: the targets of `learn`."""
        if isinstance(batch, Batch):
            if self.n_step > 1 and "n_step" not in batch:
                with_n_step(buffer, batch, indices, self.n_step, self.gamma)
            batch["returns"] = self._target(experience_of(batch, self.gamma, self.device))
        return batch

    def _experience(self, batch: Any) -> tuple[Experience, Tensor]:
        """The batch as tensors, and the targets `[B]`: its own "returns" where it has some."""
        experience = experience_of(batch, self.gamma, self.device)
        if isinstance(batch, Batch) and "returns" in batch:
            returns = torch.as_tensor(batch["returns"], dtype=torch.float32, device=self.device)
            return experience, returns.reshape(experience.reward.shape)
        return experience, self._target(experience)

    @torch.no_grad()
    def _target(self, experience: Experience) -> Tensor:
        return experience.target(self.next_value(experience))

    @torch.no_grad()
    def _follow(self, target: list[nn.Parameter], online: list[nn.Parameter]) -> None:
        for target_parameter, parameter in zip(target, online, strict=True):
            target_parameter.lerp_(parameter, self._tau)
