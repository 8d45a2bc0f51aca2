"""The loops of `returns`, compiled. They run backwards: each step needs what the next one found."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from replay_service.buffer.compiled import compiled

__all__ = ["advantages", "discounted_sums"]

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@compiled(
    "void(float64[::1], float64[::1], float64[::1], boolean[::1], boolean[::1], float64, float64, float64[::1])",
)
def advantages(
    rewards: Floats,
    values: Floats,
    next_values: Floats,
    terminated: Flags,
    ends: Flags,
    gamma: float,
    decay: float,
    result: Floats,
) -> None:
    """`A[t] = r[t] + gamma * V'[t] - V[t] + decay * A[t + 1]`, without V' where terminated and without A[t + 1] at ends."""
    following = 0.0
    for t in range(rewards.size - 1, -1, -1):
        following = 0.0 if ends[t] else decay * following
        ahead = 0.0 if terminated[t] else gamma * next_values[t]
        following += (rewards[t] + ahead) - values[t]
        result[t] = following


@compiled("void(float64[::1], boolean[::1], float64, float64[::1])")
def discounted_sums(rewards: Floats, ends: Flags, gamma: float, result: Floats) -> None:
    """`G[t] = r[t] + gamma * G[t + 1]`, without the second at ends."""
    following = 0.0
    for t in range(rewards.size - 1, -1, -1):
        following = rewards[t] + (0.0 if ends[t] else gamma * following)
        result[t] = following
