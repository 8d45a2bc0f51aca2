"""Columns of a file as entries of steps: shapes and dtypes as collectors write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from torch import Tensor

from replay_service.buffer.offline_files.column_names import DONE, REWARD, TERMINATED, TRAJECTORY, TRUNCATED
from replay_service.errors import LayoutError, key_name
from replay_service.specs import Key

__all__ = ["Ends", "as_tensor", "ends_of", "steps_of", "trajectory_numbers"]

Ends = tuple[NDArray[np.bool_], NDArray[np.bool_]]
"""Terminated and truncated, bool `[T]` each."""


def as_tensor(column: Any, name: str, path: str) -> Tensor:
    """A column `[T, *shape]` as a tensor of its own.

    Raises:
        LayoutError: it holds something else than numbers.
    """
    array = np.ascontiguousarray(column)
    if array.dtype.kind not in "biufc":
        raise LayoutError(f"{name} of {path} must hold numbers; got {array.dtype}")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return torch.from_numpy(array if array.flags.owndata and array.flags.writeable else array.copy())


def ends_of(columns: Mapping[Key, Any], path: str) -> Ends:
    """Where steps end an episode, of the columns that a file has for it.

    With `done` alone, ends are terminations; with `done` and one of the others, what is done and not that is the other one.

    Raises:
        LayoutError: a column that does not hold one flag per step.
    """
    terminated, truncated, done = (
        None if key not in columns else _flags(columns[key], key, path) for key in (TERMINATED, TRUNCATED, DONE)
    )
    known = next(flags for flags in (terminated, truncated, done) if flags is not None)
    if terminated is None:
        others = np.zeros_like(known) if truncated is None else truncated
        terminated = np.zeros_like(known) if done is None else done & ~others
    if truncated is None:
        truncated = np.zeros_like(known) if done is None else done & ~terminated
    return terminated, truncated


def trajectory_numbers(ends: Ends) -> NDArray[np.int64]:
    """Ids int64 `[T]` of the trajectories of steps, numbered in their order: a new one after every end."""
    over = ends[0] | ends[1]
    numbers = np.zeros(over.size, np.int64)
    np.cumsum(over[:-1], out=numbers[1:])
    return numbers


def steps_of(columns: Mapping[Key, Tensor], ends: Ends, trajectories: NDArray[np.int64], path: str) -> TensorDict:
    """The steps `[T]` of columns of the same length.

    Raises:
        LayoutError: a reward that is not one number per step.
    """
    rows = trajectories.size
    steps = TensorDict(batch_size=[rows])
    for key, column in columns.items():
        if key not in (DONE, TERMINATED, TRUNCATED, TRAJECTORY):
            steps[key] = _rewards(column, path) if key == REWARD else column
    terminated, truncated = (torch.from_numpy(np.ascontiguousarray(flags)).reshape(rows, 1) for flags in ends)
    steps[DONE] = terminated | truncated
    steps[TERMINATED], steps[TRUNCATED] = terminated.clone(), truncated.clone()
    steps[TRAJECTORY] = torch.from_numpy(trajectories.copy())
    return steps


def _rewards(column: Tensor, path: str) -> Tensor:
    if column.numel() != column.shape[0]:
        raise LayoutError(f"next.reward of {path} must be one number per step; got {list(column.shape)}")
    return column.to(torch.float32).reshape(-1, 1)


def _flags(column: Any, key: Key, path: str) -> NDArray[np.bool_]:
    array = np.asarray(column)
    if array.size != array.shape[0] or array.dtype.kind not in "biuf":
        raise LayoutError(f"{key_name(key)} of {path} must be one flag per step; got {array.dtype}{list(array.shape)}")
    flags: NDArray[np.bool_] = array.reshape(-1) != 0
    return flags
