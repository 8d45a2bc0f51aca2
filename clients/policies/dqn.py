"""Double deep Q-learning with an epsilon-greedy behaviour.

Target (van Hasselt, Guez and Silver 2016, "Deep Reinforcement Learning with Double Q-learning"):
`y = r + gamma * (1 - terminated) * Q_target(s', argmax_a Q(s', a))`. An episode that was only truncated goes on being worth
something, so it bootstraps; only a terminated one doesn't.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from gymnasium import Space, spaces
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.nn import functional

from clients.policy import Policy

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


class QNetwork(nn.Module):
    """Observations `[N, *obs]` (flattened, as float32) to action values `[N, actions]` through hidden ReLU layers.

    Initial weights come from `generator`, uniformly within `1/sqrt(inputs)` as `nn.Linear` does it.
    """

    def __init__(
        self, inputs: int, actions: int, *, hidden: Sequence[int] = (128, 128), generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        widths = [inputs, *hidden, actions]
        layers: list[nn.Module] = []
        for fan_in, fan_out in itertools.pairwise(widths):
            linear = nn.Linear(fan_in, fan_out)
            for parameter in (linear.weight, linear.bias):
                nn.init.uniform_(parameter, -(fan_in**-0.5), fan_in**-0.5, generator=generator)
            layers += [linear, nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, observation: Tensor) -> Tensor:
        """Action values `[N, actions]`."""
        values: Tensor = self.layers(observation.flatten(1).float())
        return values


class _Actor(nn.Module):
    """What a collector needs: the network and how often to ignore it, so that exploration travels with the weights."""

    epsilon: Tensor

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("epsilon", torch.ones((), dtype=torch.float64))


class DQNPolicy(Policy):
    """Double DQN over discrete actions; acts epsilon-greedily while collecting and greedily while testing.

    network: `[N, *obs]` to values `[N, actions]`. gamma: discount per step. learning_rate: of Adam. tau: share of the
    online network that the target takes over per update. grad_norm: largest norm of the gradient. generator: draws the
    exploration; on the CPU. Raises ValueError for a gamma or tau outside (0, 1].
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        gamma: float = 0.99,
        learning_rate: float = 1e-3,
        tau: float = 0.03,
        grad_norm: float = 10.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("gamma", gamma), ("tau", tau)):
            if not 0.0 < value <= 1.0:
                raise ValueError(f"{name} ({value}) must be above 0 and at most 1; got one outside (0, 1]")
        self._actor = _Actor(network)
        self._target = copy.deepcopy(network).requires_grad_(False)
        self._gamma = gamma
        self._tau = tau
        self._grad_norm = grad_norm
        self._generator = generator if generator is not None else torch.Generator().manual_seed(0)
        self._online_parameters = list(network.parameters())
        self._target_parameters = list(self._target.parameters())
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
        if not isinstance(observation_space, spaces.Box):
            raise TypeError(
                f"observation_space ({observation_space}) must be a Box; got {type(observation_space).__name__}"
            )
        if not isinstance(action_space, spaces.Discrete) or action_space.start != 0:
            raise TypeError(f"action_space ({action_space}) must be Discrete and start at 0; got {action_space}")
        generator = torch.Generator().manual_seed(seed)
        network = QNetwork(math.prod(observation_space.shape), int(action_space.n), hidden=hidden, generator=generator)
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

    def forward(self, data: TensorDictBase, state: Any = None) -> TensorDictBase:
        """Actions int64 `[N]` for `data["observation"]` `[N, *obs]`, with their values "action_value" `[N, actions]`."""
        with torch.no_grad():
            values = self._actor.network(data["observation"].to(self.device)).cpu()
        action = values.argmax(-1)
        epsilon = self.epsilon if self.training and not self.updating else 0.0
        if epsilon > 0.0:
            explore = torch.rand(action.shape, generator=self._generator) < epsilon
            random_action = torch.randint(values.shape[-1], action.shape, generator=self._generator)
            action = torch.where(explore, random_action, action)
        return TensorDict({"action": action, "action_value": values}, batch_size=action.shape)

    def learn(self, batch: TensorDictBase) -> dict[str, float]:
        """One Huber-loss step on transitions `[B]`; adds "td_error" `[B]` to `batch`. Weighted by "priority_weight" if there."""
        device = self.device
        action = batch["action"].to(device)
        value = self._actor.network(batch["observation"].to(device)).gather(-1, action.unsqueeze(-1)).squeeze(-1)
        target = self._bootstrap_target(batch, device)
        loss = functional.smooth_l1_loss(value, target, reduction="none")
        weight = batch.get("priority_weight", None)
        if weight is not None:
            loss = loss * weight.to(device).reshape(loss.shape)
        loss = loss.mean()
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._online_parameters, self._grad_norm)
        self._optimizer.step()
        with torch.no_grad():
            for target_parameter, parameter in zip(self._target_parameters, self._online_parameters, strict=True):
                target_parameter.lerp_(parameter, self._tau)
            batch["td_error"] = (value - target).abs().detach().to(batch["action"].device)
        return {"loss": float(loss.detach()), "value": float(value.detach().mean())}

    @torch.no_grad()
    def _bootstrap_target(self, batch: TensorDictBase, device: torch.device) -> Tensor:
        next_observation = batch["next", "observation"].to(device)
        best = self._actor.network(next_observation).argmax(-1, keepdim=True)
        next_value = self._target(next_observation).gather(-1, best).squeeze(-1)
        goes_on = (~batch["next", "terminated"].to(device).reshape(next_value.shape)).to(next_value.dtype)
        reward: Tensor = batch["next", "reward"].to(device).reshape(next_value.shape)
        target: Tensor = reward + self._gamma * goes_on * next_value
        return target
