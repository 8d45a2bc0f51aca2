"""Rings of steps walked one by one in plain Python: what a query has to agree with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from replay_service import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer


@dataclass(frozen=True)
class Step:
    """One step of one lane; `number` is different for every step ever written."""

    number: int
    episode: int
    reward: int
    ends: bool


def steps_batch(steps: list[list[Step]], by_ids: bool) -> TensorDict:
    """`[T]`, or `[T, lanes]` for more than one lane, of `steps[t][lane]`."""
    lanes = len(steps[0])
    batch = [len(steps)] if lanes == 1 else [len(steps), lanes]

    def column(name: str, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([[getattr(step, name) for step in row] for row in steps], dtype=dtype).reshape(batch)

    number = column("number", torch.int64)
    following = {"reward": column("reward", torch.float32).unsqueeze(-1)}
    data: dict[str, Any] = {"number": number, "observation": torch.stack([number, -number], -1).float()}
    if by_ids:
        data["collector"] = {"traj_ids": column("episode", torch.int64)}
    else:
        following["done"] = column("ends", torch.bool).unsqueeze(-1)
    return TensorDict({**data, "next": following}, batch_size=batch)


def ring_buffer(steps: list[list[Step]], slots: int, by_ids: bool, chunk: int) -> ReplayBuffer:
    """A buffer of `slots` slots into which all of `steps` were written, `chunk` slots at a time."""
    lanes = len(steps[0])
    storage = LazyTensorStorage(slots * lanes, ndim=1 if lanes == 1 else 2)
    buffer = TensorDictReplayBuffer(storage=storage, dim_extend=0, batch_size=1)
    for start in range(0, len(steps), chunk):
        buffer.extend(steps_batch(steps[start : start + chunk], by_ids))
    return buffer


def walked(steps: list[list[Step]], slots: int, by_ids: bool) -> list[list[Step]]:
    """The trajectories that are stored, lane after lane, the oldest first."""
    found: list[list[Step]] = []
    for lane in range(len(steps[0])):
        before: Step | None = None
        for step in (row[lane] for row in steps[-slots:]):
            goes_on = before is not None and (before.episode == step.episode if by_ids else not before.ends)
            if not goes_on:
                found.append([])
            found[-1].append(step)
            before = step
    return found


def numbers(trajectories: list[Any]) -> list[list[int]]:
    """Which steps the trajectories hold."""
    return [trajectory.number.tolist() for trajectory in trajectories]


def episodes(lengths: list[int], rewards: list[float] | None = None) -> TensorDictBase:
    """Whole episodes of those lengths `[sum]`, with ids and flags; rewards are 1 each if not given."""
    total = sum(lengths)
    ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    done = torch.zeros(total, 1, dtype=torch.bool)
    done[torch.tensor(lengths).cumsum(0) - 1] = True
    reward = torch.ones(total, 1) if rewards is None else torch.tensor(rewards).unsqueeze(-1)
    return TensorDict(
        {
            "observation": torch.arange(total * 2, dtype=torch.float32).view(total, 2),
            "number": torch.arange(total),
            "collector": {"traj_ids": ids},
            "next": {"reward": reward, "done": done},
        },
        batch_size=[total],
    )
