"""Buffers that are built here and elsewhere alike, calls on them, and what is compared of their answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from replay_service import LazyTensorStorage, ListStorage, PrioritizedSampler, ReplayBuffer, TensorDictReplayBuffer
from replay_service.buffer.writers.round_robin import TensorDictRoundRobinWriter
from tests.rows import stamped_rows

__all__ = [
    "CAPACITY",
    "Call",
    "Recipe",
    "anything",
    "by_lane",
    "filled",
    "get",
    "ignored",
    "lanes",
    "late",
    "outcome",
    "prioritized",
    "put",
    "records",
    "tensordicts",
]

Call = Callable[[Any], Any]
Recipe = Callable[[], ReplayBuffer]
CAPACITY = 10


def tensordicts() -> ReplayBuffer:
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(CAPACITY),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        batch_size=4,
        generator=torch.Generator().manual_seed(1),
    )


def prioritized() -> ReplayBuffer:
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(CAPACITY),
        sampler=PrioritizedSampler(CAPACITY, alpha=0.7, beta=0.5),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        priority_key="error",
        batch_size=4,
        generator=torch.Generator().manual_seed(1),
    )


def anything() -> ReplayBuffer:
    return ReplayBuffer(storage=LazyTensorStorage(CAPACITY), batch_size=3, generator=torch.Generator().manual_seed(2))


def records() -> ReplayBuffer:
    return ReplayBuffer(storage=ListStorage(CAPACITY), batch_size=3, generator=torch.Generator().manual_seed(3))


def lanes() -> ReplayBuffer:
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(CAPACITY, ndim=2), batch_size=4, generator=torch.Generator().manual_seed(4)
    )


def filled(rows: int) -> Call:
    return lambda b: b.extend(stamped_rows(rows))


def by_lane(steps: int, stamp: int = 0) -> TensorDict:
    """Rows `[2 lanes, steps]`."""
    return torch.stack([stamped_rows(steps, stamp), stamped_rows(steps, stamp + 100)])


def put(index: Any, data: Any) -> Call:
    return lambda b: b.__setitem__(index, data)


def get(index: Any) -> Call:
    return lambda b: b[index]


def late(stale: bool = False, submitted: bool = False, **settings: Any) -> Call:
    index = torch.tensor([0, 3, 3])
    patch = {"next": {"reward": torch.tensor([[50.0], [60.0], [70.0]])}}
    generation = torch.tensor([1, 0, 0] if stale else [0, 0, 0])
    update = {"index": index, "generation": generation, "patch": patch, **settings}
    return lambda b: b.submit_update_if_present(**update).result() if submitted else b.update_if_present(**update)


def ignored(_: Any) -> None:
    """For calls whose result may differ."""


def plain(value: Any) -> Any:
    """A value in a form that can be compared and printed."""
    if isinstance(value, torch.Tensor):
        listed = value.tolist() if value.dtype not in (torch.bfloat16,) else value.float().tolist()
        return (str(value.dtype), tuple(value.shape), listed)
    if isinstance(value, TensorDictBase):
        return (tuple(value.batch_size), sorted((key, plain(item)) for key, item in value.items()))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (type(value).__name__, {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)})
    if (hasattr(value, "data") and hasattr(value, "required_keys")) or type(value).__name__ == "Trajectory":
        return ("Trajectory", plain(value.data))
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return (type(value).__name__, [plain(item) for item in value])
    return (type(value).__name__, value)


def outcome(call: Call, buffer: Any) -> Any:
    """What a call returns or raises."""
    try:
        return plain(call(buffer))
    except Exception as error:
        # Where a handle knows better at once it may explain it in other words, but of the same thing.
        return (type(error), str(error).partition(" must ")[0])
