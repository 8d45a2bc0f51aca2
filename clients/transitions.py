"""The layout of the transitions that a collector writes into a buffer of TensorDicts.

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

Rows of a push are ordered by environment, then by time: row = environment * steps + step. So the steps of one environment are
neighbours and in order, and a trajectory id never comes back within a push once another one followed it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces

from clients.step_block import Leaf, Path

__all__ = ["space_leaves", "transition_leaves"]


def space_leaves(space: Space[Any], path: Path) -> dict[Path, Leaf]:
    """Every array leaf of `space`, whose own path is `path`; raises TypeError for a space whose rows have no single shape."""
    if isinstance(space, spaces.Dict):
        leaves: dict[Path, Leaf] = {}
        for name, inner in space.spaces.items():
            leaves.update(space_leaves(inner, (*path, name)))
        return leaves
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiBinary | spaces.MultiDiscrete):
        return {path: (tuple(space.shape or ()), np.dtype(space.dtype))}
    raise TypeError(
        f"{'.'.join(path)} ({type(space).__name__}) must be a Box, Discrete, MultiBinary, MultiDiscrete or Dict space, "
        "so that each row has one shape"
    )


def transition_leaves(observation_space: Space[Any], action_space: Space[Any], with_version: bool) -> dict[Path, Leaf]:
    """Every column of the layout above; raises TypeError for spaces that don't fit it."""
    leaves = space_leaves(observation_space, ("observation",))
    leaves.update({("next", *path): leaf for path, leaf in leaves.items()})
    leaves.update(space_leaves(action_space, ("action",)))
    if ("action",) not in leaves:
        raise TypeError("action (Dict) must be one array per environment; got a Dict action space")
    leaves["next", "reward"] = ((1,), np.dtype(np.float32))
    for name in ("done", "terminated", "truncated"):
        leaves["next", name] = ((1,), np.dtype(np.bool_))
    leaves["collector", "traj_ids"] = ((), np.dtype(np.int64))
    if with_version:
        leaves["policy_version",] = ((), np.dtype(np.int64))
    return leaves
