"""The peer's half of `benchmarks.returns`, for an interpreter that has Tianshou 2: microseconds by name, as JSON."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tianshou.algorithm.algorithm_base import Algorithm, _gae
from tianshou.data import Batch, VectorReplayBuffer

__all__ = ["main"]

LANES, BATCH, HORIZON = 16, 256, 200


def main() -> None:
    """Runs everything on so many steps, for so many seconds each."""
    steps, seconds = int(sys.argv[1]), float(sys.argv[2])
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    rewards, values, after = (rng.normal(size=steps) for _ in range(3))
    ends = np.arange(steps) % HORIZON == HORIZON - 1
    buffer = _filled(steps, rewards, ends)
    everything = buffer.sample_indices(0)
    rows = buffer[everything]
    some = buffer.sample_indices(BATCH)
    target = torch.ones(BATCH, 1)

    def steps_ahead() -> Any:
        batch = Batch(weight=np.ones(BATCH))
        return Algorithm.compute_nstep_return(batch, buffer, some, lambda b, slots: target, 0.99, 3)

    times = {
        "GAE of arrays": _clocked(lambda: _gae(values, after * ~ends, rewards, ends, 0.99, 0.95), seconds),
        "GAE of a buffer": _clocked(
            lambda: Algorithm.compute_episodic_return(rows, buffer, everything, after, values), seconds
        ),
        "3-step returns of 256": _clocked(steps_ahead, seconds),
    }
    print(json.dumps(times))


def _filled(steps: int, rewards: np.ndarray, ends: np.ndarray) -> VectorReplayBuffer:
    """Every lane gets its own stretch of the steps, as in our half."""
    buffer = VectorReplayBuffer(steps, LANES)
    size = steps // LANES
    by_step = {
        "rew": rewards[: size * LANES].reshape(LANES, size).T,
        "ends": ends[: size * LANES].reshape(LANES, size).T,
    }
    for row, end in zip(*by_step.values(), strict=True):
        columns = {"obs": row, "act": row, "rew": row, "terminated": end, "truncated": np.zeros_like(end)}
        buffer.add(Batch(columns, done=end, obs_next=row, info={}))
    return buffer


def _clocked(call: Callable[[], Any], seconds: float) -> float:
    for _ in range(2):
        call()
    spans = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(spans) < 5:
        begun = time.perf_counter()
        call()
        spans.append(time.perf_counter() - begun)
    return statistics.median(spans) * 1e6


if __name__ == "__main__":
    main()
