"""The layout of the transitions that a collector writes, and the block in which it gathers them.

One row is one step of one environment::

    observation                 [(*obs,)], dtype of the space (a Dict space gives nested keys)
    action                      [(*act,)], dtype of the space (int64 for Discrete)
    ("next", "observation")     [(*obs,)], the true one, also at the end of an episode
    ("next", "reward")          float32 [1]
    ("next", "done")            bool [1], terminated or truncated
    ("next", "terminated")      bool [1]
    ("next", "truncated")       bool [1]
    ("collector", "traj_ids")   int64, one per episode, different in every worker
    policy_version              int64, the weights that acted; only on request

Rows of a block are ordered by environment, then by time: row = environment * steps + step. So the steps of one environment are
neighbours and in order, and a trajectory id never comes back within a block once another one followed it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from tensordict import TensorDict

from clients.environments import EnvironmentStep, Observation

__all__ = ["TransitionBlock", "observation_tensordict"]

_Path = tuple[str, ...]


def _space_leaves(space: Space[Any], path: _Path) -> dict[_Path, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Every array leaf of `space` as path -> (shape of a row, dtype)."""
    if isinstance(space, spaces.Dict):
        leaves: dict[_Path, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        for name, inner in space.spaces.items():
            leaves.update(_space_leaves(inner, (*path, name)))
        return leaves
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiBinary | spaces.MultiDiscrete):
        return {path: (tuple(space.shape or ()), np.dtype(space.dtype))}
    raise TypeError(
        f"{'.'.join(path)} ({type(space).__name__}) must be a Box, Discrete, MultiBinary, MultiDiscrete or Dict space, "
        "so that each row has one shape"
    )


def _at(value: Observation, path: _Path) -> Any:
    for name in path:
        value = value[name]
    return value


def observation_tensordict(observation: Observation) -> TensorDict:
    """`{"observation": [N, *obs]}` with N rows, nested where the observation is a dict; shares the arrays' memory."""

    def convert(value: Observation) -> Any:
        if isinstance(value, dict):
            return {name: convert(inner) for name, inner in value.items()}
        return torch.from_numpy(np.ascontiguousarray(value))

    content = convert(observation)
    first = content
    while isinstance(first, dict):
        first = next(iter(first.values()))
    return TensorDict({"observation": content}, batch_size=[first.shape[0]])


class TransitionBlock:
    """Room for `steps` steps of `num_envs` environments, filled one step at a time and handed out once as rows."""

    def __init__(
        self, observation_space: Space[Any], action_space: Space[Any], num_envs: int, steps: int, with_version: bool
    ) -> None:
        self._observation_leaves = _space_leaves(observation_space, ("observation",))
        leaves = dict(self._observation_leaves)
        leaves.update(_space_leaves(action_space, ("action",)))
        if ("action",) not in leaves:
            raise TypeError("action (Dict) must be one array per environment; got a Dict action space")
        for path, leaf in self._observation_leaves.items():
            leaves[("next", *path)] = leaf
        leaves["next", "reward"] = ((1,), np.dtype(np.float32))
        for name in ("done", "terminated", "truncated"):
            leaves["next", name] = ((1,), np.dtype(np.bool_))
        leaves["collector", "traj_ids"] = ((), np.dtype(np.int64))
        if with_version:
            leaves["policy_version",] = ((), np.dtype(np.int64))
        self._leaves = leaves
        self._num_envs = num_envs
        self._steps = steps
        self._with_version = with_version
        self._used = 0
        self._columns: dict[_Path, np.ndarray] = {}
        self._kept = np.zeros((num_envs, steps), dtype=np.bool_)

    def __len__(self) -> int:
        """Steps (not rows) put in since the last `take`."""
        return self._used

    @property
    def full(self) -> bool:
        """No room for another step."""
        return self._used == self._steps

    def put(
        self,
        observation: Observation,
        action: np.ndarray,
        step: EnvironmentStep,
        traj_ids: np.ndarray,
        version: int,
        kept: np.ndarray,
    ) -> None:
        """Add one step of every environment; rows of environments where `kept` (bool `[N]`) is False are left out of `take`."""
        if self.full:
            raise RuntimeError(f"steps ({self._steps}) must be taken before more are put; got one more")
        if not self._columns:
            # Fresh arrays for each block: the rows handed out may still be on their way to the buffer.
            size = (self._num_envs, self._steps)
            self._columns = {path: np.empty(size + shape, dtype) for path, (shape, dtype) in self._leaves.items()}
        t, columns = self._used, self._columns
        for path in self._observation_leaves:
            columns[path][:, t] = _at(observation, path[1:])
            columns[("next", *path)][:, t] = _at(step.next_observation, path[1:])
        columns["action",][:, t] = action
        columns["next", "reward"][:, t, 0] = step.reward
        columns["next", "done"][:, t, 0] = step.done
        columns["next", "terminated"][:, t, 0] = step.terminated
        columns["next", "truncated"][:, t, 0] = step.truncated
        columns["collector", "traj_ids"][:, t] = traj_ids
        if self._with_version:
            columns["policy_version",][:, t] = version
        self._kept[:, t] = kept
        self._used += 1

    def take(self) -> TensorDict:
        """The kept rows `[rows]` in the order described above; the block is empty afterwards and the rows are the caller's own."""
        used, kept = self._used, self._kept[:, : self._used]
        everything = used == self._steps and bool(kept.all())
        rows = TensorDict({}, batch_size=[int(kept.sum())])
        for path, column in self._columns.items():
            flat = column.reshape(-1, *column.shape[2:]) if everything else column[:, :used][kept]
            rows[path] = torch.from_numpy(flat)
        self._columns = {}
        self._used = 0
        return rows
