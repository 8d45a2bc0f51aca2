"""Episode bounds from whole columns: a pure function, for columns that no `EpisodeIndex` follows."""

from __future__ import annotations

import torch
from torch import Tensor

from replay_service.errors import EmptyBufferError

__all__ = ["find_start_stop_traj"]


def find_start_stop_traj(
    *,
    trajectory: Tensor | None = None,
    end: Tensor | None = None,
    at_capacity: bool,
    cursor: int | Tensor | range | None = None,
    device: torch.device | str | int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Recovers first step, last step and length of every stored trajectory.

    A trajectory ends where its end flag is set, or where the next row has another id. In a full ring (`at_capacity`)
    row 0 follows the last row, so that a trajectory may go over the edge (`start > stop`), and the newest row ends its
    trajectory in any case: what followed was overwritten. In a ring that is not full the last row ends it. An id that
    comes back in rows that are not adjacent is another trajectory.

    Args:
        trajectory: ids `[T, *lanes]` in slot order, of any dtype. Exclusive with `end`.
        end: end flags `[T, *lanes]` in slot order, bool or any number.
        at_capacity: whether all slots of the ring are written. If not, pass the written rows only.
        cursor: slot of the row written **last** (not the next one), negative slots counted from the end. Of a tensor or
            range of slots the last counts. Used if `at_capacity`; without it only flags and ids make bounds, and in a
            lane without any the last row does.
        device: where to compute; the result is where the input is. Default: where the input is.

    Returns:
        `(start, stop, lengths)` of n trajectories: int64 `[n, 1 + lane dims]` coordinates (slot, *lane) of the first
        and of the last step (inclusive), and int64 `[n]` steps. Lanes one after the other, the first lane dim changing
        fastest; within a lane by `stop`.

    Raises:
        TypeError: both or neither of `trajectory` and `end` are given.
        ValueError: no dim for time, or an empty `cursor`.
        EmptyBufferError: no rows.
        IndexError: `cursor` is no slot.
    """
    if (trajectory is None) == (end is None):
        raise TypeError(
            f"exactly one of trajectory and end must be given; got {'both' if end is not None else 'neither'}"
        )
    column = trajectory if trajectory is not None else end
    assert column is not None  # one of the two is given
    if column.ndim == 0:
        raise ValueError("trajectory and end must have a dim for time; got a scalar")
    if column.numel() == 0:
        raise EmptyBufferError(f"trajectory and end must hold at least one row; got the shape {list(column.shape)}")
    column_at = column if device is None else column.to(device)
    # [*lanes reversed, T], so that nonzero() lists lane after lane.
    by_lane = column_at.permute(*range(column.ndim - 1, -1, -1))
    is_end = by_lane.bool() if trajectory is None else by_lane != by_lane.roll(-1, dims=-1)
    bounds = _bounds(_with_implicit_ends(is_end, at_capacity, cursor), column.shape[0])
    start, stop, lengths = (part.to(column.device) for part in bounds)
    return start, stop, lengths


def _with_implicit_ends(is_end: Tensor, at_capacity: bool, cursor: int | Tensor | range | None) -> Tensor:
    """Adds the ends that no column shows to flags `[*lanes, T]`; every lane has an end then."""
    rows = is_end.shape[-1]
    is_end = is_end.clone()
    if not at_capacity:
        is_end[..., -1] = True
    elif cursor is not None:
        newest = _last_slot(cursor)
        if not -rows <= newest < rows:
            raise IndexError(f"cursor ({newest}) must be a slot, -{rows} <= cursor < {rows}")
        is_end[..., newest] = True
    is_end[..., -1] |= ~is_end.any(-1)
    return is_end


def _last_slot(cursor: int | Tensor | range) -> int:
    if isinstance(cursor, int):
        return cursor
    slots = cursor.reshape(-1) if isinstance(cursor, Tensor) else cursor
    if len(slots) == 0:
        raise ValueError("cursor must be the slot written last; got no slots")
    return int(slots[-1])


def _bounds(is_end: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Coordinates and lengths from complete flags `[*lanes reversed, T]`."""
    stop = is_end.nonzero().flip(-1)
    slot = stop[:, 0]
    # A trajectory starts after the stop before it in its lane; the first one after the last stop of the lane, over the
    # edge.
    opens_lane = torch.ones_like(slot, dtype=torch.bool)
    opens_lane[1:] = (stop[1:, 1:] != stop[:-1, 1:]).any(-1)
    first = opens_lane.nonzero().squeeze(-1)
    last = first.roll(-1) - 1  # -1 for the last lane: the last stop of all
    before = slot.roll(1)
    before[first] = slot[last]
    start = stop.clone()
    start[:, 0] = (before + 1) % rows
    return start, stop, (slot - start[:, 0]) % rows + 1
