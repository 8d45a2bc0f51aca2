"""The collector: steps environments with a policy and pushes what happened into a buffer, local or on Ray alike."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import Env
from gymnasium.vector import VectorEnv
from torch import Tensor

from clients.environments import VectorEnvironments, wrap_environments
from clients.policy import Policy
from clients.transitions import TransitionBlock, observation_tensordict

__all__ = ["CollectStats", "Collector", "WeightSource"]

_TRAJECTORIES_PER_WORKER = 1 << 40


class WeightSource(Protocol):
    """Where a collector looks for newer weights between pushes."""

    def poll(self) -> tuple[int, Mapping[str, Tensor]] | None:
        """The newest (version, weights) not given before, or None; never waits for one to be made."""


@dataclass(frozen=True)
class CollectStats:
    """What one `collect` did. Episodes are in the order in which they ended.

    n_collected_steps: rows pushed. n_collected_episodes: episodes that ended. returns: sum of rewards of each, float64.
    lens: steps of each, int64, counted from their true start also where that was an earlier call. collect_time_s: seconds.
    policy_version: version of the weights that acted last (0: the policy as it was given).
    """

    n_collected_steps: int
    n_collected_episodes: int
    returns: np.ndarray
    lens: np.ndarray
    collect_time_s: float
    policy_version: int


class Collector:
    """Collects transitions (layout and order: `clients.transitions`) from N environments into `buffer`.

    buffer: anything with `extend`; where it has `submit_extend`, up to `extends_in_flight` pushes travel while the
    environments go on. None: nothing is stored, only the statistics count (testing). steps_per_push: steps of every
    environment in one push, so a push has `steps_per_push * N` rows. worker: makes trajectory ids differ between
    collectors, which must have different ones. weights: newer weights are looked for before the first step and
    after every full push.
    record_version: store "policy_version" with each row. seed: environment i starts with `seed + i`.
    Raises ValueError for numbers out of range or environments that reset by themselves, TypeError for other objects.
    """

    def __init__(
        self,
        policy: Policy,
        environments: VectorEnvironments | VectorEnv[Any, Any, Any] | Env[Any, Any],
        buffer: Any = None,
        *,
        steps_per_push: int = 16,
        extends_in_flight: int = 4,
        worker: int = 0,
        weights: WeightSource | None = None,
        record_version: bool = False,
        seed: int | None = None,
    ) -> None:
        for name, value, least in (
            ("steps_per_push", steps_per_push, 1),
            ("extends_in_flight", extends_in_flight, 1),
            ("worker", worker, 0),
        ):
            if value < least:
                raise ValueError(f"{name} ({value}) must be at least {least}; got {value}")
        self.environments = wrap_environments(environments)
        self.policy = policy
        self.policy_version = 0
        self._outbox = _Outbox(buffer, extends_in_flight)
        self._weights = weights
        n = self.environments.num_envs
        self._block = TransitionBlock(
            self.environments.observation_space, self.environments.action_space, n, steps_per_push, record_version
        )
        self._observation: Any = None  # None until the first reset; then what each environment shows now
        self._next_trajectory = worker * _TRAJECTORIES_PER_WORKER
        self._traj_ids = np.zeros(n, dtype=np.int64)
        self._returns = np.zeros(n, dtype=np.float64)
        self._lens = np.zeros(n, dtype=np.int64)
        self._seed = seed

    def reset(self, *, seed: int | list[int] | None = None) -> None:
        """Start a new episode in every environment; episodes that were open end without a done flag."""
        self._observation = self.environments.reset(seed=seed)
        self._begin(np.ones(self.environments.num_envs, dtype=np.bool_))

    def collect(self, *, n_step: int | None = None, n_episode: int | None = None, random: bool = False) -> CollectStats:
        """Take at least `n_step` steps (a multiple of N), or exactly `n_episode` episodes; all rows are stored on return.

        Episodes go on across calls with `n_step`. With `n_episode` an environment is retired once no more episodes are
        needed from it, so that long episodes are as likely as short ones; afterwards all are reset. random: actions are
        drawn from the action space and the policy isn't asked. Raises ValueError unless exactly one limit of at least 1
        is given, and whatever the buffer raises.
        """
        if (n_step is None) == (n_episode is None):
            raise ValueError(
                f"n_step ({n_step}) and n_episode ({n_episode}) must be given one at a time; got both or none"
            )
        limit = n_step if n_step is not None else n_episode
        if limit is None or limit < 1:
            name = "n_step" if n_step is not None else "n_episode"
            raise ValueError(f"{name} ({limit}) must be at least 1; got {limit}")
        started = time.monotonic()
        self._renew()
        if self._observation is None:
            self.reset(seed=self._seed)
            if self._seed is not None:
                self.environments.seed_actions(self._seed)
        steps, returns, lens = self._run(n_step, n_episode, random)
        self._push()
        self._outbox.drain()
        if n_episode is not None:
            self.reset()
        return CollectStats(
            n_collected_steps=steps,
            n_collected_episodes=len(returns),
            returns=np.asarray(returns, dtype=np.float64),
            lens=np.asarray(lens, dtype=np.int64),
            collect_time_s=time.monotonic() - started,
            policy_version=self.policy_version,
        )

    def close(self) -> None:
        """Close the environments. The buffer stays as it is: it isn't the collector's own."""
        self.environments.close()

    def _run(self, n_step: int | None, n_episode: int | None, random: bool) -> tuple[int, list[float], list[int]]:
        """Step until the limit; (rows, returns, lengths) of this call."""
        n = self.environments.num_envs
        active = np.ones(n, dtype=np.bool_)
        if n_episode is not None:
            active[n_episode:] = False
        steps, returns, lens = 0, list[float](), list[int]()
        while steps < n_step if n_step is not None else active.any():
            steps += int(active.sum())
            ended = self._step(active, random)
            finished = np.flatnonzero(ended & active)
            returns += self._returns[finished].tolist()
            lens += self._lens[finished].tolist()
            if n_episode is not None:
                surplus = int(active.sum()) - (n_episode - len(returns))
                active[finished[: max(0, surplus)]] = False
            if ended.any():
                self._observation = self.environments.reset(mask=ended)
                self._begin(ended)
            if self._block.full:
                self._push()
                self._renew()
        return steps, returns, lens

    def _step(self, active: np.ndarray, random: bool) -> np.ndarray:
        """One step of every environment; which of them are done. Rows of inactive ones are dropped."""
        action = self.environments.sample_actions() if random else self._act()
        step = self.environments.step(action)
        self._block.put(self._observation, action, step, self._traj_ids, self.policy_version, active)
        self._observation = step.next_observation
        self._returns += step.reward
        self._lens += 1
        return step.done

    def _act(self) -> np.ndarray:
        with torch.no_grad():
            chosen = self.policy(observation_tensordict(self._observation))
        action: np.ndarray = chosen["action"].numpy()
        return action

    def _begin(self, mask: np.ndarray) -> None:
        """Book new episodes in the environments of `mask`."""
        fresh = int(mask.sum())
        self._traj_ids[mask] = np.arange(self._next_trajectory, self._next_trajectory + fresh)
        self._next_trajectory += fresh
        self._returns[mask] = 0.0
        self._lens[mask] = 0

    def _push(self) -> None:
        """Send the rows gathered so far."""
        if len(self._block):
            self._outbox.send(self._block.take())

    def _renew(self) -> None:
        """Act with the newest weights from now on."""
        newer = self._weights.poll() if self._weights is not None else None
        if newer is not None:
            self.policy_version, weights = newer
            self.policy.load_weights(weights)


class _Outbox:
    """Pushes on their way to the buffer, a bounded number of them; the oldest is waited for first."""

    def __init__(self, buffer: Any, most_in_flight: int) -> None:
        self._buffer = buffer
        self._submit = getattr(buffer, "submit_extend", None)
        self._most_in_flight = most_in_flight
        self._pending: deque[Any] = deque()

    def send(self, rows: Any) -> None:
        """Hand `rows` to the buffer; waits only while too many are in flight. Raises what an earlier or this push raised."""
        if self._buffer is None or rows.batch_size[0] == 0:
            return
        if self._submit is None:
            self._buffer.extend(rows)
            return
        while len(self._pending) >= self._most_in_flight:
            self._pending.popleft().result()
        self._pending.append(self._submit(rows))

    def drain(self) -> None:
        """Wait until the buffer has everything."""
        while self._pending:
            self._pending.popleft().result()
