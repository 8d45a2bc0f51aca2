"""A handle on a buffer of TensorDicts for Stable-Baselines3: `DQN(…, replay_buffer_class=SB3ReplayBuffer,
replay_buffer_kwargs={"client": client})`, and the same for SAC, TD3 and DDPG.

Rows have the layout of `clients.transitions` (without trajectory ids), so other collectors and learners can share the buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from clients.handle import ReplayClient
from clients.outbox import Outbox

__all__ = ["SB3ReplayBuffer"]

ADDS_IN_FLIGHT = 8


class SB3ReplayBuffer:
    """The calls of a Stable-Baselines3 replay buffer, made of those of a handle; it can be pickled.

    buffer_size: must be what the service holds or more, as SB3 passes it on; the service's own capacity counts.
    observation_space, action_space, device, n_envs: as SB3 passes them. optimize_memory_usage: refused, the service decides
    that. client: the handle. samples: makes what `sample` gives; None takes SB3's `ReplayBufferSamples` (for observations of
    several parts `DictReplayBufferSamples`). Adds travel while the environment goes on; what one raises, a later call raises.

    Raises ValueError for optimize_memory_usage.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: Any,
        action_space: Any,
        device: torch.device | str = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        *,
        client: ReplayClient,
        samples: Callable[..., Any] | None = None,
    ) -> None:
        if optimize_memory_usage:
            raise ValueError(
                "optimize_memory_usage (True) must be False: how it stores is the service's affair; got True"
            )
        self.buffer_size = buffer_size
        self.observation_space = observation_space
        self.action_space = action_space
        self.device = torch.device("cpu" if device == "auto" else device)
        self.n_envs = n_envs
        self.client = client
        self._samples = samples
        self._outbox = Outbox(client.extend, client.submit_extend, ADDS_IN_FLIGHT, lambda slots, note: None)

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self.buffer_size, self.observation_space, self.action_space, self.device, self.n_envs)
        return _again, (arguments, self.client, self._samples)

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: np.ndarray,
        reward: np.ndarray,
        done: np.ndarray,
        infos: Sequence[Mapping[str, Any]],
    ) -> None:
        """Appends one step of every environment; only the clock's end where infos say "TimeLimit.truncated"."""
        over = np.asarray(done, dtype=np.bool_).reshape(-1)
        truncated = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos], dtype=np.bool_) & over
        n = len(over)
        rows = {
            "observation": _copied(obs, n),
            "action": torch.from_numpy(np.array(action).reshape(n, -1)),
            "next": {
                "observation": _copied(next_obs, n),
                "reward": torch.from_numpy(np.array(reward, dtype=np.float32).reshape(n, 1)),
                "done": torch.from_numpy(over.reshape(n, 1)),
                "terminated": torch.from_numpy((over & ~truncated).reshape(n, 1)),
                "truncated": torch.from_numpy(truncated.reshape(n, 1)),
            },
        }
        self._outbox.send(None, TensorDict(rows, batch_size=[n]))

    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Draws transitions `[batch_size, …]`, normalised by `env` (a VecNormalize) if it is given.

        `dones` is 1 where the task ended: an episode that only the clock ended goes on being worth something.
        """
        self._outbox.drain()
        rows = self.client.sample(batch_size)
        observation, next_observation = _plain(rows["observation"]), _plain(rows["next", "observation"])
        reward = rows["next", "reward"]
        if env is not None:
            observation = _normalised(observation, env)
            next_observation = _normalised(next_observation, env)
            reward = torch.from_numpy(env.normalize_reward(reward.numpy()).astype(np.float32))
        make = self._samples if self._samples is not None else _samples_of(isinstance(observation, dict))
        return make(
            observations=self._placed(observation),
            actions=self._placed(rows["action"]),
            next_observations=self._placed(next_observation),
            dones=self._placed(rows["next", "terminated"].float()),
            rewards=self._placed(reward),
        )

    def size(self) -> int:
        """Transitions that can be drawn."""
        self._outbox.drain()
        return len(self.client)

    @property
    def full(self) -> bool:
        """Whether there are `buffer_size` transitions."""
        return self.size() >= self.buffer_size

    def _placed(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._placed(part) for name, part in value.items()}
        return value.to(self.device)


def _again(arguments: tuple[Any, ...], client: ReplayClient, samples: Callable[..., Any] | None) -> SB3ReplayBuffer:
    return SB3ReplayBuffer(*arguments, client=client, samples=samples)


def _samples_of(with_parts: bool) -> Callable[..., Any]:
    from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples

    made: Callable[..., Any] = DictReplayBufferSamples if with_parts else ReplayBufferSamples
    return made


def _copied(observation: Any, n: int) -> Any:
    """Observations of `n` environments as tensors, which are ours: SB3 writes over its own."""
    if isinstance(observation, Mapping):
        return {name: _copied(part, n) for name, part in observation.items()}
    rows = np.array(observation)
    return torch.from_numpy(rows.reshape(n, *rows.shape[1:]))


def _plain(observation: Any) -> Any:
    """A nested TensorDict as dict."""
    return observation.to_dict() if hasattr(observation, "to_dict") else observation


def _normalised(observation: Any, env: Any) -> Any:
    if isinstance(observation, dict):
        normal = env.normalize_obs({name: part.numpy() for name, part in observation.items()})
        return {name: torch.from_numpy(np.asarray(part, np.float32)) for name, part in normal.items()}
    return torch.from_numpy(np.asarray(env.normalize_obs(observation.numpy()), np.float32))
