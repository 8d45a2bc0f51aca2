"""Steps of episodes with goals: what a step achieved tells which step of which episode it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from replay_service import HERReplayBuffer, LazyTensorStorage
from tests.buffer.episode_rows import episode_rows

NOT_YET = -1.0


def goal_rows(lengths: Sequence[int], *, first: int = 0, closed: bool = True) -> TensorDict:
    """`episode_rows` with `achieved_goal` `[n, 2]` = (episode, step), the one after it under `next`, and unreached desired goals."""
    rows = episode_rows(lengths, first=first, closed=closed)
    count = rows.shape[0]
    achieved = torch.stack([rows["number"], rows["step"]], 1).float()
    rows["achieved_goal"] = achieved
    rows["next", "achieved_goal"] = achieved + torch.tensor([0.0, 1.0])
    for key in ("desired_goal", ("next", "desired_goal")):
        rows[key] = torch.full((count, 2), NOT_YET)
    rows["next", "reward"] = torch.full((count, 1), NOT_YET)
    return rows


def distance(achieved: Tensor, desired: Tensor) -> Tensor:
    """A reward `[k]` that tells both goals: their distance in steps, and the episode if it is another."""
    return (desired - achieved)[:, 1] + 1000 * (desired - achieved)[:, 0]


def assert_relabelled(sample: TensorDictBase, strategy: str = "future") -> Tensor:
    """Every row is as stored, or has a goal of its own episode and the reward for it. Returns which are relabelled."""
    index = sample["goal_index"]
    changed = (index if index.ndim == 1 else index[:, 0]) >= 0
    own, goal = sample["achieved_goal"], sample["desired_goal"]
    assert torch.equal(goal, sample["next", "desired_goal"])
    assert bool((goal[~changed] == NOT_YET).all())
    assert bool((sample["next", "reward"][~changed] == NOT_YET).all())
    assert torch.equal(goal[changed, 0], own[changed, 0]), "a goal of another episode"
    ahead = goal[changed, 1] - own[changed, 1]
    assert strategy == "episode" or bool((ahead >= 0).all()), "a goal that lies behind"
    assert torch.equal(sample["next", "reward"][changed, 0], ahead - 1), "the reward of what the step led to"
    return changed


def her(capacity: int = 100, rows: TensorDictBase | None = None, *, seed: int = 0, **settings: Any) -> HERReplayBuffer:
    given: dict[str, Any] = {
        "storage": LazyTensorStorage(capacity),
        "batch_size": 64,
        "generator": torch.Generator().manual_seed(seed),
        "reward_fn": distance,
        **settings,
    }
    buffer = HERReplayBuffer(**given)
    if rows is not None:
        buffer.extend(rows)
    return buffer
