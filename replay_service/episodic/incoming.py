"""What is handed to `add`, brought into the one form that is stored: rows with a leading dimension, a ring for each,
and all three end flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from replay_service.arguments import numbers_of
from replay_service.episodic.batch import Batch
from replay_service.errors import LayoutError, MissingFlagError

__all__ = ["Incoming", "ids_of", "incoming", "lifted", "rings_of", "with_flags"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

REQUIRED = ("obs", "act", "rew")
TIME_LIMIT = "TimeLimit.truncated"
NUMPY_HAS = (
    *(torch.float64, torch.float32, torch.float16, torch.bool, torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)


class Incoming(NamedTuple):
    """Steps to be stored.

    Attributes:
        content: entries by name, each `[n, …]`.
        ring_of: int64 `[n]`.
        rewards: float64 `[n, *shape]`, contiguous.
        ends: bool `[n]`: terminated or truncated.
        done_only: whether the caller speaks of `done` alone.
    """

    content: dict[str, Any]
    ring_of: Ints
    rewards: NDArray[np.float64]
    ends: Bools
    done_only: bool


def incoming(batch: Any, ring_of: Ints | None) -> Incoming:
    """Reads steps.

    Args:
        batch: a `Batch` or dictionary of one step, or `[n, …]` where `ring_of` int64 `[n]` is given.
        ring_of: the ring of each row; None for one step without a leading dimension, which goes to ring 0.

    Raises:
        LayoutError: `obs`, `act` or `rew` is missing, or there are not as many rows as rings.
        MissingFlagError: an end flag is missing.
    """
    content = dict((batch if isinstance(batch, Batch) else Batch(batch)).items())
    missing = [name for name in REQUIRED if name not in content or is_empty(content[name])]
    if missing:
        raise LayoutError(
            f"{missing[0]} (missing) must be in every step: obs, act, rew and done, or terminated and truncated; "
            f"got {sorted(content)}"
        )
    if ring_of is None:
        content, ring_of = lifted(content), np.zeros(1, np.int64)
    done_only = with_flags(content)
    ends, rewards = content["done"], content["rew"]
    rewards = np.require(_numbers("rew", rewards), np.float64, ("C", "W"))  # as compiled loops take them
    content["rew"] = rewards
    for name, column in (("rew", rewards), ("done", ends)):
        if column.ndim == 0 or column.shape[0] != ring_of.size:
            raise LayoutError(f"{name} ({list(column.shape)}) must have one row for each of {ring_of.size} buffer_ids")
    if ends.ndim > 1:
        raise LayoutError(f"done ({list(ends.shape)}) must be one flag a step; got {ends.ndim - 1} dimensions more")
    return Incoming(content, ring_of, rewards, ends, done_only)


def with_flags(content: dict[str, Any]) -> bool:
    """Puts `terminated`, `truncated` and `done` (one of the other two) into `content`, each bool `[n]`; True if only
    `done` was there. A step that is done is then terminated, unless `info` says that its time was over.

    Raises:
        MissingFlagError: neither `done`, nor both of the others (one of them with `done` will do).
    """
    given = {name: _flags(name, content[name]) for name in ("terminated", "truncated", "done") if name in content}
    terminated, truncated, done = (given.get(name) for name in ("terminated", "truncated", "done"))
    done_only = terminated is None and truncated is None
    if done is not None and terminated is None:
        truncated = done & _time_is_over(content.get("info"), done) if truncated is None else truncated
        terminated = done & ~truncated
    elif done is not None and terminated is not None and truncated is None:
        truncated = done & ~terminated
    if terminated is None or truncated is None:
        name = "truncated" if terminated is not None else "terminated" if truncated is not None else "done"
        raise MissingFlagError(
            f"{name} (missing) must be in every step: done, or terminated and truncated; got {sorted(content)}"
        )
    content["terminated"], content["truncated"], content["done"] = terminated, truncated, terminated | truncated
    return done_only


def rings_of(buffer_ids: ArrayLike | None, rings: int) -> Ints:
    """`buffer_ids` as int64 `[n]`; None names every ring once.

    Raises:
        TypeError: ids that are not integers.
        IndexError: a ring that does not exist.
    """
    if buffer_ids is None:
        return np.arange(rings)
    ids = ids_of(buffer_ids)
    wrong = ids[(ids < 0) | (ids >= rings)]
    if wrong.size:
        raise IndexError(f"buffer_ids ({wrong[0]}) must be at least 0 and below {rings}, the number of lanes")
    return ids


def ids_of(buffer_ids: ArrayLike) -> Ints:
    """`buffer_ids` as int64 `[n]`.

    Raises:
        TypeError: ids that are not integers.
    """
    ids = buffer_ids if isinstance(buffer_ids, np.ndarray) else numbers_of("buffer_ids", buffer_ids).numpy(force=True)
    if ids.ndim != 1 or (ids.dtype.kind not in "iu" and ids.size):
        raise TypeError(f"buffer_ids ({ids.dtype} {list(ids.shape)}) must be integers [n], one for each row")
    return np.require(ids, np.int64, ("C", "A", "W"))


def lifted(content: Mapping[str, Any]) -> dict[str, Any]:
    """One step as rows `[1, …]`."""
    return {name: _lift(value) for name, value in content.items()}


def is_empty(value: Any) -> bool:
    """Whether `value` is a level without any leaf."""
    return isinstance(value, Batch | dict) and all(is_empty(part) for _, part in value.items())


def _lift(value: Any) -> Any:
    if isinstance(value, Batch | dict):
        return lifted(dict(value.items()))
    if isinstance(value, Tensor):
        return value.unsqueeze(0)
    if isinstance(value, np.ndarray | np.generic | int | float | complex):
        return np.asarray(value)[None]
    row = np.empty(1, object)
    row[0] = value
    return row


def _time_is_over(info: Any, done: Bools) -> Bools:
    if not isinstance(info, Batch | dict):
        return np.zeros_like(done)
    limit = dict(info.items()).get(TIME_LIMIT)
    if limit is None:
        return np.zeros_like(done)
    return np.broadcast_to(_flags(TIME_LIMIT, limit), done.shape)


def _flags(name: str, value: Any) -> Bools:
    array = _numbers(name, value)
    if array.dtype == np.bool_:
        return array
    flags: Bools = array == 1
    strange = array[~flags & (array != 0)]
    if strange.size:  # NaN and the like would count as True
        raise LayoutError(f"{name} ({strange.reshape(-1)[0]}) must be True or False, or 1 or 0, of every step")
    return flags


def _numbers(name: str, value: Any) -> NDArray[Any]:
    try:
        if isinstance(value, Tensor):
            numbers = numbers_of(name, value)
            return (numbers if numbers.dtype in NUMPY_HAS else numbers.double()).numpy(force=True)
        array = np.asarray(value)
        if array.dtype.kind in "OUS":
            array = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise LayoutError(f"{name} ({value!r:.60}) must be numbers; {error}") from None
    if array.dtype.kind not in "biuf":
        raise LayoutError(f"{name} ({array.dtype}) must be real numbers; got {value!r:.60}")
    return array
