"""A buffer of every class with an entry of every kind, and all that it does next, for tests that two of them are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from replay_service.episodic import (
    Batch,
    CachedReplayBuffer,
    HERReplayBuffer,
    HERVectorReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedVectorReplayBuffer,
    ReplayBuffer,
    VectorReplayBuffer,
)
from tests.episodic.steps import rows

__all__ = ["CLASSES", "entries", "grow", "life", "told"]


def reached(achieved: Any, desired: Any) -> Any:
    return (np.asarray(achieved) == np.asarray(desired)).astype(float)


def goals(numbers: list[int]) -> dict[str, Any]:
    achieved = np.array(numbers)
    return {"observation": achieved, "achieved_goal": achieved, "desired_goal": np.full_like(achieved, 99)}


def entries(numbers: list[int]) -> dict[str, Any]:
    """One entry of every kind."""
    words = np.empty((len(numbers), 2), object)
    for place, number in enumerate(numbers):
        words[place, 0] = f"é{number}"
        words[place, 1] = [None, (number, 1 << 70), {"k": [number, np.arange(3)]}, float("nan")][number % 4]
    values = torch.tensor(numbers)
    return {
        "obs": goals(numbers),
        "obs_next": goals([number + 1 for number in numbers]),
        "rew": np.array(numbers) / 3.0,
        "policy": Batch(h=values.to(torch.bfloat16)[:, None].expand(-1, 3), c=np.array(numbers, np.complex64)),
        "info": Batch(words=words, when=np.array(numbers, "datetime64[s]"), wide=np.array(numbers, np.longdouble)),
    }


CLASSES: dict[str, Callable[[], Any]] = {
    "ReplayBuffer": lambda: ReplayBuffer(9, stack_num=2, sample_avail=True, random_seed=4),
    "VectorReplayBuffer": lambda: VectorReplayBuffer(12, 3),
    "PrioritizedReplayBuffer": lambda: PrioritizedReplayBuffer(9, alpha=0.6, beta=0.4),
    "PrioritizedVectorReplayBuffer": lambda: PrioritizedVectorReplayBuffer(12, 3, alpha=0.6, beta=0.4),
    "CachedReplayBuffer": lambda: CachedReplayBuffer(ReplayBuffer(9), 3, 4),
    "HERReplayBuffer": lambda: HERReplayBuffer(9, reached, horizon=3, future_k=2.0),
    "HERVectorReplayBuffer": lambda: HERVectorReplayBuffer(12, 3, reached, horizon=3, future_k=2.0),
}


def grow(buffer: Any, start: int, count: int) -> list[Any]:
    """Adds steps to every ring, whose episodes end at different times; what `add` said."""
    said = []
    for step in range(start, start + count):
        numbers = [100 * ring + step for ring in range(buffer.buffer_num)]
        ends = [int(number % 5 == 4) for number in numbers]
        ids = None if buffer.buffer_num > 1 else [0]
        said.append([part.tolist() for part in buffer.add(rows(numbers, ends, **entries(numbers)), ids)])
    return said


def told(value: Any) -> Any:
    """A value in a form that can be compared, types, dtypes and all."""
    if isinstance(value, Batch | dict):
        return {name: told(part) for name, part in value.items()}
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, np.ndarray) and value.dtype == object:
        return "objects", value.shape, [told(part) for part in value.reshape(-1)]
    if isinstance(value, np.ndarray | np.generic):
        return str(value.dtype), repr(value.tolist())
    if isinstance(value, list | tuple):
        return type(value).__name__, [told(part) for part in value]
    return type(value).__name__, repr(value)


def life(buffer: Any, start: int) -> list[Any]:
    """What a buffer says of itself, and what all that comes next gives."""
    said: list[Any] = [len(buffer), buffer.write_count, buffer.last_index.tolist(), told(buffer[:])]
    said.append(buffer.unfinished_index().tolist())
    for step in range(start, start + 4):
        batch, slots = buffer.sample(5, n_step=2, gamma=0.5)
        said += [told(batch), slots.tolist(), told(buffer[slots])]
        if hasattr(buffer, "update_weight"):
            buffer.update_weight(slots, slots + 0.5)
            said += [buffer.weight.tolist(), buffer.beta]
        said += [buffer.sample_indices(None).tolist(), grow(buffer, step, 1)]
    buffer.end_episodes([0])
    return [*said, grow(buffer, start + 4, 2), told(buffer[:])]
