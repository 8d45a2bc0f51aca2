"""Soft actor-critic for continuous actions, with two critics and a temperature that keeps the entropy.

Haarnoja et al. 2018, "Soft Actor-Critic Algorithms and Applications" (arXiv:1812.05905): equations 5 (critics), 7 (actor) and
18 (temperature); the log-probability of a squashed action is that of its appendix C.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.nn import functional

from clients.policies.experience import Experience, answer, note_errors, observations_of
from clients.policies.networks import Perceptron, flat_size
from clients.policies.off_policy import OffPolicy
from clients.policy import Statistics

__all__ = ["GaussianActor", "SACPolicy", "TwinCritic"]

LOG_SCALE_BOUNDS = (-20.0, 2.0)


class GaussianActor(nn.Module):
    """Observations `[N, *obs]` to the mean and log standard deviation, `[N, actions]` each, of actions before `tanh`."""

    def __init__(
        self, inputs: int, actions: int, *, hidden: Sequence[int] = (256, 256), generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.network = Perceptron(inputs, 2 * actions, hidden=hidden, generator=generator)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """(mean, log standard deviation)."""
        mean, log_scale = self.network(observation).chunk(2, dim=-1)
        return mean, log_scale.clamp(*LOG_SCALE_BOUNDS)


class TwinCritic(nn.Module):
    """Observations `[N, *obs]` and actions `[N, actions]` to two independent values, `[2, N]`."""

    def __init__(
        self, inputs: int, actions: int, *, hidden: Sequence[int] = (256, 256), generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.critics = nn.ModuleList(
            Perceptron(inputs + actions, 1, hidden=hidden, generator=generator) for _ in range(2)
        )

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """Values `[2, N]`."""
        row = torch.cat([observation.flatten(1).float(), action.flatten(1).float()], dim=-1)
        return torch.stack([critic(row).squeeze(-1) for critic in self.critics])


class SACPolicy(OffPolicy):
    """SAC; draws actions in (-1, 1) while collecting and takes their most likely value while testing.

    Args:
        actor: `[N, *obs]` to (mean, log standard deviation), `[N, actions]` each, of actions before `tanh`.
        critic: observations and actions to two values, `[2, N]`.
        action_space: what `map_action` scales to.
        gamma: discount per step.
        tau: share of the critic that its target takes over per update.
        actor_learning_rate, critic_learning_rate, temperature_learning_rate: of Adam.
        target_entropy: what the temperature keeps the entropy at; None: minus the number of actions per step.
        temperature: the initial one.
        n_step: see `OffPolicy`.
        generator: draws the actions; on the CPU.

    Raises:
        ValueError: gamma or tau outside (0, 1], n_step below 1, or a temperature that is not above 0.
    """

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        *,
        action_space: Space[Any],
        gamma: float = 0.99,
        tau: float = 0.005,
        actor_learning_rate: float = 3e-4,
        critic_learning_rate: float = 1e-3,
        temperature_learning_rate: float = 3e-4,
        target_entropy: float | None = None,
        temperature: float = 0.2,
        n_step: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        # tanh has bounded the actions already.
        super().__init__(gamma=gamma, tau=tau, n_step=n_step, action_space=action_space, action_bound_method="")
        if not temperature > 0.0:
            raise ValueError(f"temperature ({temperature}) must be above 0; got {temperature}")
        self.actor = actor
        self.critic = critic
        self._target_critic = copy.deepcopy(critic).requires_grad_(False)
        self._log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))
        self._target_entropy = -float(math.prod(action_space.shape or ())) if target_entropy is None else target_entropy
        self._generator = generator if generator is not None else torch.Generator().manual_seed(0)
        self._critic_parameters = list(critic.parameters())
        self._target_parameters = list(self._target_critic.parameters())
        self._actor_optimizer = torch.optim.Adam(actor.parameters(), lr=actor_learning_rate, fused=True)
        self._critic_optimizer = torch.optim.Adam(self._critic_parameters, lr=critic_learning_rate, fused=True)
        self._temperature_optimizer = torch.optim.Adam([self._log_temperature], lr=temperature_learning_rate)

    @classmethod
    def for_spaces(
        cls,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        hidden: Sequence[int] = (256, 256),
        seed: int = 0,
        **settings: Any,
    ) -> SACPolicy:
        """A policy whose networks fit the spaces; equal seeds give equal weights. settings: as in the constructor.

        Raises TypeError unless both spaces are Boxes, and ValueError for actions without bounds.
        """
        inputs, actions = flat_size(observation_space, "observation_space"), flat_size(action_space, "action_space")
        assert isinstance(action_space, spaces.Box)
        if len(action_space.shape) != 1:
            raise TypeError(f"action_space ({action_space}) must have one dimension; got {len(action_space.shape)}")
        generator = torch.Generator().manual_seed(seed)
        actor = GaussianActor(inputs, actions, hidden=hidden, generator=generator)
        critic = TwinCritic(inputs, actions, hidden=hidden, generator=generator)
        return cls(actor, critic, action_space=action_space, generator=generator, **settings)

    @property
    def temperature(self) -> float:
        """How much entropy counts beside reward."""
        return float(self._log_temperature.detach().exp())

    def acting_modules(self) -> nn.Module:
        """The actor."""
        return self.actor

    def forward(self, data: Any, state: Any = None) -> Any:
        """Actions float32 `[N, actions]` in (-1, 1) for observations `[N, *obs]`: drawn while training, else the likeliest."""
        observation = observations_of(data, self.device)
        with torch.no_grad():
            action = self._drawn(observation)[0] if self.training else torch.tanh(self.actor(observation)[0])
        return answer(data, action.cpu())

    def next_value(self, experience: Experience) -> Tensor:
        """The lesser of the target critics' values of an action drawn for it, plus its entropy."""
        action, log_probability = self._drawn(experience.next_observation)
        values = self._target_critic(experience.next_observation, action).amin(0)
        soft: Tensor = values - self._log_temperature.exp() * log_probability
        return soft

    def learn(self, batch: Any, **kwargs: Any) -> Statistics:
        """One step of critics, actor and temperature on transitions `[B]`; notes their temporal-difference errors.

        Targets and errors as for `DQNPolicy.learn`.
        """
        experience, target = self._experience(batch)
        values = self.critic(experience.observation, experience.action)
        errors = values - target
        critic_loss = experience.weighted_mean(
            functional.mse_loss(values, target.expand_as(values), reduction="none").sum(0)
        )
        self._step(self._critic_optimizer, critic_loss)

        action, log_probability = self._drawn(experience.observation)
        for parameter in self._critic_parameters:
            parameter.requires_grad_(False)
        actor_loss = (self.temperature * log_probability - self.critic(experience.observation, action).amin(0)).mean()
        self._step(self._actor_optimizer, actor_loss)
        for parameter in self._critic_parameters:
            parameter.requires_grad_(True)

        surplus = (log_probability.detach() + self._target_entropy).mean()
        self._step(self._temperature_optimizer, -self._log_temperature * surplus)
        self._follow(self._target_parameters, self._critic_parameters)
        note_errors(batch, errors.detach().abs().mean(0))
        return {
            "loss/critic": float(critic_loss.detach()),
            "loss/actor": float(actor_loss.detach()),
            "temperature": self.temperature,
        }

    def _drawn(self, observation: Any) -> tuple[Tensor, Tensor]:
        """Actions `[N, actions]` and their log-probabilities `[N]`, differentiable."""
        mean, log_scale = self.actor(observation)
        noise = torch.randn(mean.shape, generator=self._generator).to(mean.device)
        before = mean + log_scale.exp() * noise
        # log(1 - tanh(x)^2), in a form that doesn't run out of digits for large x.
        squashing = 2.0 * (math.log(2.0) - before - functional.softplus(-2.0 * before))
        gaussian = -0.5 * noise.square() - log_scale - 0.5 * math.log(2.0 * math.pi)
        return torch.tanh(before), (gaussian - squashing).sum(-1)

    @staticmethod
    def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
