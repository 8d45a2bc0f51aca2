"""What marks the trajectories of steps that no index follows: ids or end flags among the stored entries, and the bounds they give."""

from __future__ import annotations

from typing import Any

import numpy as np
from tensordict import TensorDictBase
from torch import Tensor

from replay_service.buffer.episodes import find_start_stop_traj
from replay_service.buffer.segments import Segments
from replay_service.buffer.trajectory import NEXT, as_key, entry_key, known_entries
from replay_service.errors import key_name
from replay_service.specs import Key

__all__ = ["END_KEYS", "ID_KEYS", "segments_of"]

ID_KEYS: tuple[Key, ...] = (("collector", "traj_ids"), ("traj_ids",), ("episode",))
"""Where trajectory ids are looked for, in this order."""

END_KEYS = ("done", "terminated", "truncated")
"""Any of them ends a trajectory. Under `next`; at the root only if there is no `next`, since a root flag tells of the step before."""


def segments_of(
    data: TensorDictBase, trajectory_key: Any = None, *, at_capacity: bool = False, cursor: int | None = None
) -> Segments:
    """The trajectories of `data` `[T, *lanes]` in slot order.

    Args:
        data: the filled slots.
        trajectory_key: the entry with the trajectory ids; None: `ID_KEYS`, else end flags.
        at_capacity: the ring is full, so that slot 0 follows the last.
        cursor: the slot written next, of a full ring.

    Raises:
        KeyError: `trajectory_key` is not stored, or nothing marks trajectories.
        ValueError: there is more than one id per step.
    """
    trajectory, end = _marks(data, trajectory_key)
    oldest = cursor if at_capacity and cursor is not None else 0
    newest = None if cursor is None else cursor - 1
    start, _, length = find_start_stop_traj(trajectory=trajectory, end=end, at_capacity=at_capacity, cursor=newest)
    coordinates = start.cpu().numpy()
    lane_shape = tuple(data.batch_size[1:])
    lane = np.zeros(len(coordinates), np.int64)
    for coordinate, extent in zip(coordinates.T[1:], lane_shape, strict=True):
        lane = lane * extent + coordinate
    lanes = int(np.prod(lane_shape, dtype=np.int64))
    return Segments(coordinates[:, 0], lane, length.cpu().numpy(), data.batch_size[0], lanes, oldest)


def _marks(data: TensorDictBase, trajectory_key: Any) -> tuple[Tensor | None, Tensor | None]:
    """Ids or end flags `[T, *lanes]`, one of the two."""
    batch = data.batch_size
    if trajectory_key is not None:
        wanted = as_key("trajectory_key", trajectory_key)
        place = entry_key(data, wanted)
        if place is None:
            raise KeyError(f"trajectory_key ({key_name(wanted)}) must be one of {known_entries(data)}")
        return _one_per_step(data.get(place), place, batch), None
    for key in ID_KEYS:
        ids = data.get(key, None)
        if isinstance(ids, Tensor):
            return _one_per_step(ids, key, batch), None
    prefix: Key = () if data.get(NEXT, None) is None else (NEXT,)
    flags = [data.get((*prefix, name), None) for name in END_KEYS]
    ends = [flag.reshape(*batch, -1).bool().any(-1) for flag in flags if isinstance(flag, Tensor)]
    if not ends:
        raise KeyError(
            f"trajectory_key (None) must name the entry with trajectory ids: there is none of {[key_name(key) for key in ID_KEYS]} "
            f"and none of the end flags {[key_name((NEXT, name)) for name in END_KEYS]}; got {known_entries(data)}"
        )
    end = ends[0]
    for more in ends[1:]:
        end = end | more
    return None, end


def _one_per_step(ids: Any, key: Key, batch: tuple[int, ...]) -> Tensor:
    if not isinstance(ids, Tensor) or ids.numel() != np.prod(batch):
        shape = list(ids.shape) if isinstance(ids, Tensor) else type(ids).__name__
        raise ValueError(f"{key_name(key)} must be one trajectory id per step, {list(batch)}; got {shape}")
    return ids.reshape(batch)
