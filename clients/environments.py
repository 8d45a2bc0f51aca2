"""Gymnasium vector environments whose resets are done by the collector, never behind its back.

Gymnasium's automatic resets either hide the last observation of an episode in an info dictionary (same step) or spend a row on
the reset (next step). Here they are off: `step` returns what the environment really answered, and whoever steps resets the
finished ones by mask. So a reset observation can't be taken for the outcome of an action, and no row is bogus.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

__all__ = [
    "DummyVectorEnv",
    "EnvironmentStep",
    "VectorEnvironments",
    "make_environments",
    "registered",
    "wrap_environments",
]

Observation = Any
"""What a space holds: an array `[N, *obs]`, or a (nested) dict of such arrays for a `Dict` space."""


@dataclass(frozen=True)
class EnvironmentStep:
    """What N environments answered to one action each; rows are in the order of the environments.

    next_observation: `[N, *obs]`, the true one, also where the episode ended.
    reward: float64 `[N]`. terminated: bool `[N]`, the task ended. truncated: bool `[N]`, only the clock ended it.
    info: what else the environments told, as Gymnasium's vector environments gather it (name -> array `[N]`).
    """

    next_observation: Observation
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def done(self) -> np.ndarray:
        """bool `[N]`: the episode is over, for whichever reason."""
        over: np.ndarray = np.logical_or(self.terminated, self.truncated)
        return over


class VectorEnvironments:
    """N environments that step together and are reset only on request.

    Raises ValueError where `vector` resets by itself (its autoreset mode isn't `AutoresetMode.DISABLED`).
    """

    def __init__(self, vector: VectorEnv[Any, Any, Any]) -> None:
        mode = vector.metadata.get("autoreset_mode")
        if mode != AutoresetMode.DISABLED:
            got = getattr(mode, "name", mode)
            raise ValueError(
                f"autoreset_mode ({got}) must be DISABLED, so that the true last observation of an episode is stored; got a "
                "vector environment that resets by itself. Build it with clients.make_environments, or pass "
                "autoreset_mode=gymnasium.vector.AutoresetMode.DISABLED"
            )
        self._vector = vector
        self.num_envs: int = vector.num_envs
        self.everyone = self.waiting = np.arange(self.num_envs)
        self.observation_space: gymnasium.Space[Any] = vector.single_observation_space
        self.action_space: gymnasium.Space[Any] = vector.single_action_space
        self._next_seed: int | Sequence[int | None] | None = None

    def __len__(self) -> int:
        return self.num_envs

    def seed(self, seed: int | Sequence[int | None] | None = None) -> None:
        """The seed of the next `reset` of all environments that is given none; until then they go on as they are."""
        self._next_seed = seed

    def reset(self, *, seed: int | Sequence[int | None] | None = None, mask: np.ndarray | None = None) -> Observation:
        """Start new episodes, in all environments or where `mask` (bool `[N]`) is True; return every current observation.

        An int seed gives environment i the seed `seed + i`; None goes on with the generators the environments have.
        """
        if mask is None:
            seed, self._next_seed = self._next_seed if seed is None else seed, None
        seeds = list(seed) if isinstance(seed, Sequence) else seed
        options = None if mask is None else {"reset_mask": mask}
        seeded: Any = seeds  # gymnasium takes a list with gaps, its annotation does not
        observation: Observation = self._vector.reset(seed=seeded, options=options)[0]
        return observation

    def step(self, action: np.ndarray) -> EnvironmentStep:
        """Apply `action` `[N, *act]`; environments that were done must have been reset."""
        next_observation, reward, terminated, truncated, info = self._vector.step(action)
        return EnvironmentStep(next_observation, np.asarray(reward, dtype=np.float64), terminated, truncated, info)

    def exchange(self, action: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, EnvironmentStep]:
        """As `step`; (environments that answered, their answers): here always all, in their order."""
        return self.everyone, self.step(action)

    def render(self) -> Any:
        """What the environments show, as their render mode says."""
        return self._vector.render()

    def seed_actions(self, seed: int) -> None:
        """Make `sample_actions` repeatable."""
        self._vector.action_space.seed(seed)

    def sample_actions(self) -> np.ndarray:
        """One action per environment `[N, *act]`, drawn from the action space."""
        return np.asarray(self._vector.action_space.sample())

    def close(self) -> None:
        """Close the environments; twice is fine."""
        if not self._vector.closed:
            self._vector.close()


class DummyVectorEnv(VectorEnvironments):
    """`VectorEnvironments` in this process, one from each factory; raises ValueError where there is none."""

    def __init__(self, env_fns: Sequence[Callable[[], gymnasium.Env[Any, Any]]]) -> None:
        if not env_fns:
            raise ValueError("env_fns (0 factories) must be at least one; got none")
        super().__init__(SyncVectorEnv(list(env_fns), autoreset_mode=AutoresetMode.DISABLED))


def make_environments(
    env: str | Callable[[], gymnasium.Env[Any, Any]], count: int, *, processes: bool = False, **env_options: Any
) -> VectorEnvironments:
    """`count` environments by Gymnasium id (with `env_options` for `gymnasium.make`) or by factory, in this process or in one each.

    Raises ValueError for a count below 1 or an id that Gymnasium doesn't know, TypeError for options beside a factory.
    """
    if count < 1:
        raise ValueError(f"count ({count}) must be at least 1; got {count} environments")
    if isinstance(env, str):
        env_id = env
        try:
            registered(env_id)
        except (gymnasium.error.Error, ImportError) as exc:
            raise ValueError(f"env ({env_id!r}) must be an id registered with Gymnasium; got: {exc}") from exc

        def build() -> gymnasium.Env[Any, Any]:
            return gymnasium.make(env_id, **env_options)
    elif env_options:
        raise TypeError(f"env_options ({sorted(env_options)}) must be given with an id; a factory takes none")
    else:
        build = env
    builders = [build] * count
    if processes:
        # Not forked from this process, which may have threads (of torch, of Ray) that a fork would cut in half.
        vector = AsyncVectorEnv(builders, context="forkserver", autoreset_mode=AutoresetMode.DISABLED)
        return VectorEnvironments(vector)
    return VectorEnvironments(SyncVectorEnv(builders, autoreset_mode=AutoresetMode.DISABLED))


def registered(env_id: str) -> EnvSpec:
    """What Gymnasium knows of an id; of `module:Name-v0`, `module` is imported first, which registers it.

    Raises gymnasium.error.Error for an unknown id and ImportError for an unknown module.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        importlib.import_module(module)
    return gymnasium.spec(name)


def wrap_environments(
    environments: VectorEnvironments
    | VectorEnv[Any, Any, Any]
    | gymnasium.Env[Any, Any]
    | Sequence[Callable[[], gymnasium.Env[Any, Any]]],
) -> VectorEnvironments:
    """`environments` as `VectorEnvironments`: a vector environment is taken as it is, a lone one becomes a vector of one.

    A list of factories becomes a vector of what they make. Raises TypeError for anything else and ValueError for a vector
    environment that resets by itself.
    """
    if isinstance(environments, VectorEnvironments):
        return environments
    if isinstance(environments, VectorEnv):
        return VectorEnvironments(environments)
    if isinstance(environments, gymnasium.Env):
        lone = environments
        return DummyVectorEnv([lambda: lone])
    if isinstance(environments, list | tuple) and all(callable(factory) for factory in environments):
        return DummyVectorEnv(environments)
    raise TypeError(
        f"environments ({type(environments).__name__}) must be a gymnasium.Env, a gymnasium vector environment, a list of "
        "factories or VectorEnvironments; environments that answer one by one belong to an AsyncCollector"
    )
