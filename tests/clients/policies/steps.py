"""Buffers with a few steps of known worth, for policies to learn from."""

from __future__ import annotations

from typing import Any

import numpy as np

from replay_service.episodic import PrioritizedReplayBuffer, ReplayBuffer
from replay_service.episodic.batch import Batch

__all__ = ["filled", "prioritized"]


def prioritized(size: int = 10) -> PrioritizedReplayBuffer:
    """An empty buffer that draws in proportion to priorities."""
    return PrioritizedReplayBuffer(size, alpha=1.0, beta=1.0)


def filled(buffer: ReplayBuffer, rows: list[tuple[int, float, bool, bool]], action: Any = 0) -> ReplayBuffer:
    """`buffer` with one step per (state, reward, terminated, truncated); the next state is one higher."""
    for state, reward, terminated, truncated in rows:
        buffer.add(
            Batch(
                obs=np.array([state], dtype=np.float32),
                act=action,
                rew=reward,
                terminated=terminated,
                truncated=truncated,
                obs_next=np.array([state + 1], dtype=np.float32),
            )
        )
    return buffer
