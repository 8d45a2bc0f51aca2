"""The loop of `totals.EpisodeTotals`, compiled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from replay_service.buffer.compiled import compiled

__all__ = ["count"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LENGTH, START = range(2)


@compiled(
    "void(int64[::1], int64[::1], float64[:, ::1], boolean[::1], float64[:, ::1], int64[:, ::1], "
    "float64[:, ::1], int64[:, ::1])"
)
def count(
    ring_of: Ints,
    slots: Ints,
    rewards: Floats,
    ends: NDArray[np.bool_],
    running: Floats,
    episodes: Ints,
    returns: Floats,
    found: Ints,
) -> None:
    """Add steps to the running episodes of their rings, one after the other.

    `running` `[rings, k]` and `episodes` `[rings, (LENGTH, START)]` are the running totals; `returns` `[n, k]` and
    `found` `[n, (LENGTH, START)]` become what each step reports: totals where it ends its episode, zeros elsewhere,
    and in any case the first slot of its episode.
    """
    for i in range(ring_of.size):
        ring = ring_of[i]
        if episodes[ring, LENGTH] == 0:
            episodes[ring, START] = slots[i]
        episodes[ring, LENGTH] += 1
        found[i, START] = episodes[ring, START]
        found[i, LENGTH] = episodes[ring, LENGTH] if ends[i] else 0
        for j in range(rewards.shape[1]):
            total = running[ring, j] + rewards[i, j]
            returns[i, j] = total if ends[i] else 0.0
            running[ring, j] = 0.0 if ends[i] else total
        if ends[i]:
            episodes[ring, LENGTH] = 0
