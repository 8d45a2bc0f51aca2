"""The collector: steps environments with a policy and pushes what happened into a buffer, local or on Ray alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import Env
from gymnasium.vector import VectorEnv
from torch import Tensor

from clients.acting import Actor
from clients.async_environments import AsyncEnvironments
from clients.collect_stats import CollectStats
from clients.environments import VectorEnvironments, wrap_environments
from clients.recorders import EpisodeRecorder, NoRecorder, Recorder, StepRows, TransitionRecorder
from clients.step_block import Path, leaves_of
from clients.transitions import space_leaves

__all__ = ["CollectStats", "Collector", "WeightSource"]

_TRAJECTORIES_PER_WORKER = 1 << 40
STEPS_PER_PUSH = 16
Hook = Callable[[Any], Mapping[str, Any] | None]


class WeightSource(Protocol):
    """Where a collector looks for newer weights between pushes."""

    def poll(self) -> tuple[int, Mapping[str, Tensor]] | None:
        """The newest (version, weights) not given before, or None; never waits for one to be made."""


class Collector:
    """Collects steps of N environments into `buffer`: a TensorDict buffer or an episodic one, local or a handle.

    What has `extend` gets rows in the layout of `clients.transitions`; what has `add` with `buffer_ids` gets obs, act, rew,
    terminated, truncated, obs_next, and info and policy if any: environment i in lane `first_lane + i`. Where the buffer has
    `submit_extend` or `submit_add`, up to `extends_in_flight` pushes travel while the environments go on. None: nothing is
    stored, only the statistics count (testing).

    policy: called with a `Batch` of obs and info `[N, …]` and the state it gave last; it gives act and, if it likes, state
    (zeroed where an episode ends) and policy (stored beside). env: a Gymnasium environment, a vector of them, or factories.
    exploration_noise: pass actions through `policy.exploration_noise(act, batch)`; what that gives is stored.
    steps_per_push: steps of every environment in one push (default 16; 1 for an episodic buffer in this process).
    worker: makes trajectory ids differ between collectors, which must have different ones. weights: newer weights are
    looked for before the first step and after every full push. record_version: store "policy_version" with each row
    (TensorDict buffers). seed: environment i starts with `seed + i`. on_step: gets the rows `[R]` of every step, as a Batch,
    before they are stored, and may change them; columns `[R]` that it returns are stored with them (episodic buffers).
    on_episode_done: gets the steps of every episode that ended, as a Batch; columns `[steps]` that it returns are added to the
    buffer (episodic buffers in this process).

    Raises ValueError for numbers out of range, more environments than lanes, environments that reset by themselves or do not
    step together, on_step or on_episode_done without an episodic buffer; TypeError for other objects and for spaces whose rows
    have no single shape.
    """

    def __init__(
        self,
        policy: Any,
        env: VectorEnvironments | VectorEnv[Any, Any, Any] | Env[Any, Any] | Sequence[Callable[[], Env[Any, Any]]],
        buffer: Any = None,
        *,
        exploration_noise: bool = False,
        steps_per_push: int | None = None,
        extends_in_flight: int = 4,
        worker: int = 0,
        first_lane: int = 0,
        weights: WeightSource | None = None,
        record_version: bool = False,
        seed: int | None = None,
        on_step: Hook | None = None,
        on_episode_done: Hook | None = None,
    ) -> None:
        if steps_per_push is None:
            steps_per_push = 1 if _is_episodic(buffer) and not hasattr(buffer, "submit_add") else STEPS_PER_PUSH
        _at_least(steps_per_push=(steps_per_push, 1), extends_in_flight=(extends_in_flight, 1))
        _at_least(worker=(worker, 0), first_lane=(first_lane, 0))
        self.environments = self._wrapped(env)
        self.policy = policy
        self.buffer = buffer
        self.policy_version = 0
        self.reset_stat()
        n = self.environments.num_envs
        spaces = (self.environments.observation_space, self.environments.action_space)
        space_leaves(spaces[0], ("observation",))
        self._on_episode_done = on_episode_done
        self._recorder: Recorder = NoRecorder()
        if _is_episodic(buffer):
            told = None if on_episode_done is None else self._tell_episode
            size = (n, steps_per_push)
            self._recorder = EpisodeRecorder(
                buffer, size, extends_in_flight, first_lane, on_step=on_step, on_episode=told
            )
        elif on_step is not None or on_episode_done is not None:
            name = "on_step" if on_step is not None else "on_episode_done"
            raise ValueError(
                f"{name} must come with an episodic buffer, which can store what it returns; got {buffer!r:.60}"
            )
        elif buffer is not None:
            self._recorder = TransitionRecorder(buffer, spaces, (n, steps_per_push), record_version, extends_in_flight)
        self._actor = Actor(policy, self.environments, exploration_noise)
        self._weights = weights
        self._observation: dict[Path, np.ndarray] | None = (
            None  # until the first reset; then what each environment shows
        )
        self._next_trajectory = worker * _TRAJECTORIES_PER_WORKER
        self._traj_ids = np.zeros(n, dtype=np.int64)
        self._returns = np.zeros(n, dtype=np.float64)
        self._lens = np.zeros(n, dtype=np.int64)
        self._open = np.zeros(n, dtype=np.bool_)  # whether the buffer has steps of an episode that goes on
        self._seed = seed
        self._astray = (
            False  # whether a collect or reset broke off, so that nobody knows what the environments show now
        )

    def reset(self, reset_buffer: bool = True, *, seed: int | list[int] | None = None) -> None:
        """Start everything anew: environments, totals and, unless told otherwise, the buffer."""
        if reset_buffer:
            self.reset_buffer()
        self.reset_env(seed=seed)
        self.reset_stat()

    def reset_env(self, *, seed: int | list[int] | None = None) -> None:
        """Start a new episode in every environment; steps of open ones that are stored end there, truncated."""
        if self._observation is None and seed is None and self._seed is not None:
            seed = self._seed
            self.environments.seed_actions(seed)
        if self._astray:
            self._recorder.settle()
            self._open[:] = True  # of steps that got lost nobody knows which were the last ones
        self._astray = True
        abandoned = np.flatnonzero(self._open)
        self._show(self.environments.reset(seed=seed), None)
        self._actor.forget(None)
        self._begin(np.ones(self.environments.num_envs, dtype=np.bool_))
        self._recorder.end_episodes(abandoned)
        self._open[:] = False
        self._astray = False

    def reset_buffer(self, keep_statistics: bool = False) -> None:
        """Empty the buffer; with `keep_statistics`, an episodic one goes on counting the episodes that are open."""
        self._recorder.reset_buffer(keep_statistics)
        self._open[:] = False

    def reset_stat(self) -> None:
        """Set `collect_step`, `collect_episode` and `collect_time` (seconds) back to 0."""
        self.collect_step, self.collect_episode, self.collect_time = 0, 0, 0.0

    def collect(
        self,
        n_step: int | None = None,
        n_episode: int | None = None,
        random: bool = False,
        render: float | None = None,
    ) -> CollectStats:
        """Take at least `n_step` steps (a multiple of N), or exactly `n_episode` episodes; all rows are stored on return.

        Episodes go on across calls with `n_step`. With `n_episode` an environment is retired once no more episodes are
        needed from it, so that long episodes are as likely as short ones; afterwards all are reset. random: actions are
        drawn from the action space and the policy isn't asked. render: show every step and wait so many seconds after it.
        Raises ValueError unless exactly one limit of at least 1 is given, and whatever policy, environments and buffer raise.
        After a collect that broke off, the next one begins with `reset_env`, so that no step seems to follow one that is lost.
        """
        self._check_limits(n_step, n_episode)
        started = time.monotonic()
        self._renew()
        if self._observation is None or self._astray:
            self.reset_env()
        self._astray = True
        steps, returns, lens = self._run(n_step, n_episode, random, render)
        self._recorder.push()
        starts = self._recorder.drain()
        self._astray = False
        if n_episode is not None:
            self._end_episodes()
        stats = CollectStats(
            n_collected_steps=steps,
            n_collected_episodes=len(returns),
            returns=np.asarray(returns, dtype=np.float64),
            lens=np.asarray(lens, dtype=np.int64),
            collect_time_s=time.monotonic() - started,
            policy_version=self.policy_version,
            idxs=starts,
        )
        self.collect_step += steps
        self.collect_episode += stats.n_collected_episodes
        self.collect_time += stats.collect_time_s
        return stats

    def close(self) -> None:
        """Close the environments. The buffer stays as it is: it isn't the collector's own."""
        self.environments.close()

    # -- what an asynchronous collector does otherwise ----------------------------------------------------------------

    def _wrapped(self, env: Any) -> Any:
        if isinstance(env, AsyncEnvironments):
            raise ValueError(
                "env (AsyncEnvironments) must step together; environments that answer one by one belong to an AsyncCollector"
            )
        return wrap_environments(env)

    def _wanted(self, n_episode: int | None) -> np.ndarray:
        """Environments whose steps are stored, before any of them is retired."""
        wanted = np.ones(self.environments.num_envs, dtype=np.bool_)
        if n_episode is not None:
            wanted[n_episode:] = False
        return wanted

    def _retire(self, active: np.ndarray, finished: np.ndarray, missing: int) -> None:
        """Of the environments that just finished, those whose next episode would be one too many take part no longer."""
        surplus = int(active.sum()) - missing
        active[finished[: max(0, surplus)]] = False

    def _end_episodes(self) -> None:
        """After a collect of episodes."""
        self.reset_env()

    # -- inner ------------------------------------------------------------------------------------------------------

    def _check_limits(self, n_step: int | None, n_episode: int | None) -> None:
        if (n_step is None) == (n_episode is None):
            raise ValueError(
                f"n_step ({n_step}) and n_episode ({n_episode}) must be given one at a time; got both or none"
            )
        limit, name = (n_step, "n_step") if n_step is not None else (n_episode, "n_episode")
        if isinstance(limit, bool) or not isinstance(limit, int | np.integer):
            raise TypeError(f"{name} ({limit!r}) must be an integer of at least 1; got {type(limit).__name__}")
        if limit < 1:
            raise ValueError(f"{name} ({limit}) must be at least 1; got {limit}")
        if n_step is not None and self._on_episode_done is not None:
            raise ValueError(f"n_step ({n_step}) must be n_episode with on_episode_done, which needs whole episodes")

    def _run(
        self, n_step: int | None, n_episode: int | None, random: bool, render: float | None
    ) -> tuple[int, list[float], list[int]]:
        """Step until the limit; (rows, returns, lengths) of this call."""
        active = self._wanted(n_episode)
        steps, returns, lens = 0, list[float](), list[int]()
        while steps < n_step if n_step is not None else len(returns) < (n_episode or 0):
            kept, ended = self._step(active, random)
            steps += kept
            finished = np.flatnonzero(ended & active)
            returns += self._returns[finished].tolist()
            lens += self._lens[finished].tolist()
            if n_episode is not None:
                self._retire(active, finished, n_episode - len(returns))
            if ended.any():
                self._show(self.environments.reset(mask=ended), None)
                self._actor.forget(np.flatnonzero(ended))
                self._begin(ended)
            if self._recorder.full:
                self._recorder.push()
                self._renew()
            if render is not None:
                self.environments.render()
                time.sleep(render)
        return steps, returns, lens

    def _step(self, active: np.ndarray, random: bool) -> tuple[int, np.ndarray]:
        """One step: rows stored, and (bool `[N]`) whose episode is over. Rows of environments that aren't active are dropped."""
        assert self._observation is not None
        everyone = self.environments.everyone
        with torch.no_grad():
            answered, step = self._actor.step(self._observation, random)
        ids = None if answered is everyone else answered
        kept = active if ids is None else active[ids]
        action, policy, info = self._actor.rows(ids, step)
        observation = self._observation
        if ids is not None:
            observation = {path: leaf[ids] for path, leaf in observation.items()}
        trajectories = self._traj_ids if ids is None else self._traj_ids[ids]
        rows = StepRows(ids, observation, action, policy, step, info, trajectories, self.policy_version, kept)
        self._recorder.put(rows)
        self._show(step.next_observation, ids)
        who = slice(None) if ids is None else ids
        self._returns[who] += step.reward
        self._lens[who] += 1
        self._open[who] = (self._open[who] | kept) & ~(step.done & kept)
        ended = np.zeros(len(everyone), dtype=np.bool_)
        ended[who] = step.done
        return int(kept.sum()), ended

    def _show(self, observation: Any, ids: np.ndarray | None) -> None:
        """Environments `ids` (None: all) show this now."""
        leaves = leaves_of(observation)
        if ids is None or self._observation is None:
            self._observation = leaves
            return
        for path, leaf in leaves.items():
            self._observation[path][ids] = leaf

    def _begin(self, mask: np.ndarray) -> None:
        """Book new episodes in the environments of `mask`."""
        fresh = int(mask.sum())
        self._traj_ids[mask] = np.arange(self._next_trajectory, self._next_trajectory + fresh)
        self._next_trajectory += fresh
        self._returns[mask] = 0.0
        self._lens[mask] = 0

    def _renew(self) -> None:
        """Act with the newest weights from now on."""
        newer = self._weights.poll() if self._weights is not None else None
        if newer is not None:
            self.policy_version, weights = newer
            self.policy.load_weights(weights)

    def _tell_episode(self, slots: np.ndarray) -> None:
        """Show the steps in `slots` to the hook, and store the columns that it returns."""
        assert self._on_episode_done is not None
        columns = self._on_episode_done(self.buffer[slots])
        for name, column in (columns or {}).items():
            self.buffer.set_array_at_key(np.asarray(column), name, index=slots)


def _is_episodic(buffer: Any) -> bool:
    return buffer is not None and not hasattr(buffer, "extend") and not hasattr(buffer, "submit_extend")


def _at_least(**bounds: tuple[int, int]) -> None:
    for name, (value, least) in bounds.items():
        if value < least:
            raise ValueError(f"{name} ({value}) must be at least {least}; got {value}")
