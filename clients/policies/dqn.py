"""Double deep Q-learning with an epsilon-greedy behaviour.

Target (van Hasselt, Guez and Silver 2016, "Deep Reinforcement Learning with Double Q-learning"):
`y = r + gamma * (1 - terminated) * Q_target(s', argmax_a Q(s', a))`. An episode that was only truncated goes on being worth
something, so it bootstraps; only a terminated one doesn't. Over n steps, `r` is their discounted sum, `gamma` its n-th power
and `s'` what came after the last of them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.nn import functional

from clients.policies.experience import Experience, answer, note_errors, observations_of
from clients.policies.networks import QNetwork, flat_size
from clients.policies.off_policy import OffPolicy
from clients.policy import Statistics

__all__ = ["DQNPolicy", "EpsilonSchedule", "QNetwork"]


@dataclass(frozen=True)
class EpsilonSchedule:
    """Probability of a random action, falling in a line from `start` to `end` over the first `steps` environment steps."""

    start: float = 1.0
    end: float = 0.05
    steps: int = 20_000

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} ({getattr(self, name)}) must be a probability; got one outside [0, 1]")
        if self.steps < 1:
            raise ValueError(f"steps ({self.steps}) must be at least 1; got a schedule without length")

    def __call__(self, env_steps: int) -> float:
        """Epsilon after `env_steps` environment steps."""
        fraction = min(1.0, max(0, env_steps) / self.steps)
        return self.start + fraction * (self.end - self.start)


class _Actor(nn.Module):
    """What a collector needs: the network and how often to ignore it, so that exploration travels with the weights."""

    epsilon: Tensor

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("epsilon", torch.ones((), dtype=torch.float64))


class DQNPolicy(OffPolicy):
    """DQN over discrete actions; acts epsilon-greedily while collecting and greedily while testing.

    Args:
        network: `[N, *obs]` to values `[N, actions]`.
        gamma: discount per step.
        learning_rate: of Adam.
        tau: share of the online network that the target takes over per update.
        grad_norm: largest norm of the gradient.
        n_step: see `OffPolicy`.
        double: the online network chooses the action whose value the target network gives; otherwise the latter does both.
        generator: draws the exploration; on the CPU.

    Raises:
        ValueError: gamma or tau outside (0, 1], or n_step below 1.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        gamma: float = 0.99,
        learning_rate: float = 1e-3,
        tau: float = 0.03,
        grad_norm: float = 10.0,
        n_step: int = 1,
        double: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(gamma=gamma, tau=tau, n_step=n_step)
        self._actor = _Actor(network)
        self._target_network = copy.deepcopy(network).requires_grad_(False)
        self._grad_norm = grad_norm
        self._double = double
        self._generator = generator if generator is not None else torch.Generator().manual_seed(0)
        self._online_parameters = list(network.parameters())
        self._target_parameters = list(self._target_network.parameters())
        self._optimizer = torch.optim.Adam(self._online_parameters, lr=learning_rate, fused=True)

    @classmethod
    def for_spaces(
        cls,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        hidden: Sequence[int] = (128, 128),
        seed: int = 0,
        **settings: Any,
    ) -> DQNPolicy:
        """A policy whose `QNetwork` fits the spaces; equal seeds give equal weights. settings: as in the constructor.

        Raises TypeError unless observations are a Box and actions are Discrete.
        """
        inputs = flat_size(observation_space, "observation_space")
        if not isinstance(action_space, spaces.Discrete) or action_space.start != 0:
            raise TypeError(f"action_space ({action_space}) must be Discrete and start at 0; got {action_space}")
        generator = torch.Generator().manual_seed(seed)
        network = QNetwork(inputs, int(action_space.n), hidden=hidden, generator=generator)
        return cls(network, generator=generator, **settings)

    @property
    def epsilon(self) -> float:
        """Probability of a random action while collecting."""
        return float(self._actor.epsilon)

    @epsilon.setter
    def epsilon(self, value: float) -> None:
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"epsilon ({value}) must be a probability; got one outside [0, 1]")
        self._actor.epsilon.fill_(value)

    def acting_modules(self) -> nn.Module:
        """The online network and epsilon."""
        return self._actor

    def forward(self, data: Any, state: Any = None, *, eps: float | None = None) -> Any:
        """Actions int64 `[N]` for observations `[N, *obs]`, with their values `[N, actions]` under "action_value".

        eps: probability of a random action; None: `epsilon` while collecting, and 0 otherwise.
        """
        with torch.no_grad():
            values = self._actor.network(observations_of(data, self.device)).cpu()
        action = values.argmax(-1)
        if eps is None:
            eps = self.epsilon if self.training and not self.updating else 0.0
        if eps > 0.0:
            explore = torch.rand(action.shape, generator=self._generator) < eps
            random_action = torch.randint(values.shape[-1], action.shape, generator=self._generator)
            action = torch.where(explore, random_action, action)
        return answer(data, action, action_value=values)

    def next_value(self, experience: Experience) -> Tensor:
        """The target network's value of the best next action."""
        values: Tensor = self._target_network(experience.next_observation)
        chooser = self._actor.network(experience.next_observation) if self._double else values
        return values.gather(-1, chooser.argmax(-1, keepdim=True)).squeeze(-1)

    def learn(self, batch: Any, **kwargs: Any) -> Statistics:
        """One Huber-loss step on transitions `[B]`, weighted where they have weights; notes their temporal-difference errors.

        A Batch is learned towards its "returns" where it has some. The errors become "td_error" of a TensorDict, and "weight" of a
        Batch that was drawn by priority.
        """
        experience, target = self._experience(batch)
        action = experience.action.long().reshape(-1, 1)
        value = self._actor.network(experience.observation).gather(-1, action).squeeze(-1)
        loss = experience.weighted_mean(functional.smooth_l1_loss(value, target, reduction="none"))
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._online_parameters, self._grad_norm)
        self._optimizer.step()
        self._follow(self._target_parameters, self._online_parameters)
        note_errors(batch, value.detach() - target)
        return {"loss": float(loss.detach()), "value": float(value.detach().mean())}
