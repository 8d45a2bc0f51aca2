"""Proximal policy optimisation with generalised advantage estimates.

Schulman et al. 2017, "Proximal Policy Optimization Algorithms" (arXiv:1707.06347), equation 9, on steps that the same policy
took: all rows of a buffer in their order, as `update(0, buffer)` reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.nn import functional

from clients.policies.experience import answer, observations_of, tensors
from clients.policies.heads import CategoricalHead, GaussianHead
from clients.policies.networks import Perceptron, flat_size
from clients.policy import Policy, Statistics
from replay_service.episodic.batch import Batch
from replay_service.episodic.returns import episodic_return, gae

__all__ = ["PPOPolicy"]

ROWS_AT_ONCE = 4096  # through a network without gradients


class _Actor(nn.Module):
    """What a collector needs: the network and the distribution, whose deviations are weights too."""

    def __init__(self, network: nn.Module, head: CategoricalHead | GaussianHead) -> None:
        super().__init__()
        self.network = network
        self.head = head


class PPOPolicy(Policy):
    """PPO over discrete or continuous actions; draws actions while collecting and takes the likeliest while testing.

    Args:
        actor: `[N, *obs]` to the parameters of `head`, `[N, actions]`.
        critic: `[N, *obs]` to values `[N, 1]`.
        head: the distribution of actions.
        action_space: what `map_action` clips and scales to, if it is a Box.
        gamma, gae_lambda: see `replay_service.episodic.returns.gae`.
        clip: how far the probability ratio counts beside 1.
        learning_rate: of Adam.
        value_coefficient, entropy_coefficient: of the two in the loss.
        grad_norm: largest norm of the gradient.
        generator: draws the actions and the order of rows; on the CPU.

    Raises:
        ValueError: gamma or gae_lambda outside [0, 1], or a clip that is not above 0.
    """

    def __init__(
        self,
        actor: nn.Module,
        critic: nn.Module,
        head: CategoricalHead | GaussianHead,
        *,
        action_space: Space[Any] | None = None,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip: float = 0.2,
        learning_rate: float = 3e-4,
        value_coefficient: float = 0.5,
        entropy_coefficient: float = 0.0,
        grad_norm: float = 0.5,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(action_space=action_space)
        for name, value in (("gamma", gamma), ("gae_lambda", gae_lambda)):
            if not 0.0 <= value <= 1.0:
                raise ValueError(f"{name} ({value}) must be from 0 to 1; got {value}")
        if not clip > 0.0:
            raise ValueError(f"clip ({clip}) must be above 0; got {clip}")
        self.critic = critic
        self.gamma = gamma
        self.gae_lambda = gae_lambda
        self._actor = _Actor(actor, head)
        self._clip = clip
        self._value_coefficient = value_coefficient
        self._entropy_coefficient = entropy_coefficient
        self._grad_norm = grad_norm
        self._generator = generator if generator is not None else torch.Generator().manual_seed(0)
        self._learnt = [*self._actor.parameters(), *critic.parameters()]
        self._optimizer = torch.optim.Adam(self._learnt, lr=learning_rate, eps=1e-5, fused=True)

    @classmethod
    def for_spaces(
        cls,
        observation_space: Space[Any],
        action_space: Space[Any],
        *,
        hidden: Sequence[int] = (64, 64),
        seed: int = 0,
        **settings: Any,
    ) -> PPOPolicy:
        """A policy whose networks fit the spaces; equal seeds give equal weights. settings: as in the constructor.

        Raises TypeError unless observations are a Box, and actions Discrete from 0 on or a Box.
        """
        inputs = flat_size(observation_space, "observation_space")
        head: CategoricalHead | GaussianHead
        if isinstance(action_space, spaces.Discrete) and action_space.start == 0:
            outputs = int(action_space.n)
            head = CategoricalHead()
        else:
            outputs = flat_size(action_space, "action_space")
            head = GaussianHead(outputs)
        generator = torch.Generator().manual_seed(seed)
        actor, critic = (
            Perceptron(inputs, width, hidden=hidden, activation=nn.Tanh, gain=gain, generator=generator)
            for width, gain in ((outputs, 0.01), (1, 1.0))
        )
        return cls(actor, critic, head, action_space=action_space, generator=generator, **settings)

    def acting_modules(self) -> nn.Module:
        """The actor."""
        return self._actor

    def forward(self, data: Any, state: Any = None) -> Any:
        """Actions `[N]` or `[N, actions]` for observations `[N, *obs]`: drawn while training, else the likeliest."""
        with torch.no_grad():
            parameters = self._actor.network(observations_of(data, self.device))
            head = self._actor.head
            action = head.drawn(parameters, self._generator) if self.training else head.likeliest(parameters)
        return answer(data, action.cpu())

    def process_fn(self, batch: Any, buffer: Any, indices: Any) -> Any:
        """A batch of "obs", "act", and as `learn` needs them "returns", "advantages" and "log_probability", float32 `[B]`.

        A buffer that has `episodic_return` computes the first two itself (a hosted one where the steps are). Rows of a TensorDict
        must be in order of time, one trajectory after the other; where it has `("collector", "traj_ids")` these tell them apart.
        """
        rows, device = _as_batch(batch), self.device
        observation = tensors(rows["obs"], device)
        action = tensors(rows["act"], device)
        value = self._values(observation)
        value_after = self._values(tensors(rows["obs_next"], device))
        settings = {"gamma": self.gamma, "gae_lambda": self.gae_lambda}
        if not isinstance(batch, Batch):
            advantages = gae(rows["rew"], value, value_after, rows["terminated"], rows["ends"], **settings)
            returns = advantages + value
        elif hasattr(buffer, "episodic_return"):
            returns, advantages = buffer.episodic_return(indices, value_after, value, **settings)
        else:
            returns, advantages = episodic_return(buffer, indices, value_after, value, **settings)
        with torch.no_grad():
            chunks = zip(_chunks(observation), torch.split(action, ROWS_AT_ONCE), strict=True)
            logs = [self._actor.head.log_probability(self._actor.network(part), taken) for part, taken in chunks]
        rows["obs"], rows["act"] = observation, action
        for name, column in (("returns", returns), ("advantages", advantages)):
            rows[name] = torch.as_tensor(column, dtype=torch.float32, device=device)
        rows["log_probability"] = torch.cat(logs)
        return rows

    def learn(self, batch: Any, batch_size: int = 64, repeat: int = 10, **kwargs: Any) -> Statistics:
        """Steps on the rows in pieces of `batch_size`, each row `repeat` times; losses of all steps.

        Raises ValueError for numbers out of range.
        """
        if repeat < 1:
            raise ValueError(f"repeat ({repeat}) must be at least 1; got {repeat}")
        names = ("obs", "act", "returns", "advantages", "log_probability")
        rows = Batch.wrap({name: batch[name] for name in names})
        losses: dict[str, list[float]] = {"loss": [], "loss/actor": [], "loss/critic": [], "entropy": []}
        for _ in range(repeat):
            for part in rows.split(batch_size, merge_last=True, generator=self._generator):
                for name, value in self._step(part).items():
                    losses[name].append(value)
        return dict(losses)

    def _step(self, part: Batch) -> dict[str, float]:
        advantages = part["advantages"]
        if len(advantages) > 1:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        parameters = self._actor.network(part["obs"])
        ratio = (self._actor.head.log_probability(parameters, part["act"]) - part["log_probability"]).exp()
        clipped = ratio.clamp(1.0 - self._clip, 1.0 + self._clip)
        actor_loss = -torch.minimum(ratio * advantages, clipped * advantages).mean()
        critic_loss = functional.mse_loss(self.critic(part["obs"]).squeeze(-1), part["returns"])
        entropy = self._actor.head.entropy(parameters).mean()
        loss = actor_loss + self._value_coefficient * critic_loss - self._entropy_coefficient * entropy
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._learnt, self._grad_norm)
        self._optimizer.step()
        figures = {"loss": loss, "loss/actor": actor_loss, "loss/critic": critic_loss, "entropy": entropy}
        return {name: float(value.detach()) for name, value in figures.items()}

    @torch.no_grad()
    def _values(self, observation: Any) -> np.ndarray:
        """What the critic says, float64 `[B]`."""
        values = torch.cat([self.critic(part).reshape(-1) for part in _chunks(observation)])
        return values.cpu().double().numpy()


def _chunks(observation: Any) -> list[Any]:
    """Observations in pieces that a network takes at once."""
    if isinstance(observation, Tensor):
        return list(torch.split(observation, ROWS_AT_ONCE))
    return [observation[start : start + ROWS_AT_ONCE] for start in range(0, len(observation), ROWS_AT_ONCE)]


def _as_batch(data: Any) -> Batch:
    """The columns that PPO needs, under the names of a Batch; a new one, which can be added to."""
    if isinstance(data, Batch):
        return Batch.wrap(dict(data.items()))
    following = data["next"]
    done = following["done"].reshape(-1).clone()
    done[-1:] = True
    identity = data.get(("collector", "traj_ids"), None)
    if identity is not None:
        identity = identity.reshape(-1)
        done[:-1] |= identity[1:] != identity[:-1]
    return Batch.wrap(
        {
            "obs": data["observation"],
            "act": data["action"],
            "rew": following["reward"].reshape(-1),
            "terminated": following["terminated"].reshape(-1),
            "ends": done,
            "obs_next": following["observation"],
        }
    )
