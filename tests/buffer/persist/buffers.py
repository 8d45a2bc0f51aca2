"""Buffers that tests save, and how two of them are compared."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict

from replay_service import (
    LazyTensorStorage,
    PrioritizedSampler,
    RoundRobinWriter,
    TensorDictReplayBuffer,
)

__all__ = ["CAPACITY", "make", "rows", "same"]

CAPACITY = 4096
WIDTH = 1024  # floats: 4 kB a row, so that a column has blocks of a megabyte, 256 rows each


def rows(count: int, stamp: int = 0) -> TensorDict:
    """Rows that say their number in every entry."""
    number = torch.arange(stamp, stamp + count)
    return TensorDict(
        {"observation": number.to(torch.float32)[:, None].expand(count, WIDTH).clone(), "number": number}, [count]
    )


def make(storage: Any = None, capacity: int = CAPACITY, seed: int = 0, **settings: Any) -> TensorDictReplayBuffer:
    """A prioritized buffer with stamps."""
    parts: dict[str, Any] = {
        "sampler": PrioritizedSampler(capacity, alpha=0.7, beta=0.5),
        "writer": RoundRobinWriter(track_generations=True),
        "batch_size": 8,
        **settings,
    }
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity) if storage is None else storage,
        generator=torch.Generator().manual_seed(seed),
        **parts,
    )


def same(first: Any, second: Any, draws: int = 5) -> bool:
    """Whether two buffers hold the same, and draw the same from here on."""
    assert (len(first), first.write_count) == (len(second), second.write_count)
    if len(first):
        assert bool((first[:] == second[:]).all())
        for _ in range(draws):
            one, other = first.sample(), second.sample()
            assert bool((one == other).all())
    return True
