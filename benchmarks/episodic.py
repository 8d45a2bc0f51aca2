"""What do episodic buffers cost beside Tianshou's?

    python -m benchmarks.episodic [--seconds 2] [--json FILE] [--peer PYTHON]

In a `VectorReplayBuffer` of 16 rings with 100,000 steps: adding 16 rows, and drawing 256 of them. In a `ReplayBuffer` of 5,000 frames
of 84x84 bytes: drawing 256 stacks of 4, with the frames after them stored or not.
With `--peer`, an interpreter that has Tianshou 2.0.1 runs the same, in turn with ours, and the ratios of the medians are told.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RINGS = 16
STEPS = 100_000
FRAMES = 5_000
BATCH = 256
STACK = 4
ROUNDS = 3

# Ours at most so many times the peer's.
LIMITS = {
    "add 16 rows": 0.7,
    "sample 256": 0.7,
    "sample 256 x 4 frames": 0.5,
    "sample 256 x 4 frames, next not stored": 0.5,
}


def calls(library: Any) -> dict[str, Callable[[], Any]]:
    """What is measured, by name, on the classes of `library`; fills the buffers."""
    rng = np.random.default_rng(0)
    vector = library.VectorReplayBuffer(STEPS, RINGS)
    batches = [_rows(library.Batch, rng) for _ in range(64)]
    for number in range(STEPS // RINGS):
        vector.add(batches[number % len(batches)])
    turn = iter(range(1 << 62))
    measured: dict[str, Callable[[], Any]] = {
        "add 16 rows": lambda: vector.add(batches[next(turn) % len(batches)]),
        "sample 256": lambda: vector.sample(BATCH),
    }
    for name, ignored in (("sample 256 x 4 frames", False), ("sample 256 x 4 frames, next not stored", True)):
        frames = library.ReplayBuffer(FRAMES, stack_num=STACK, ignore_obs_next=ignored)
        for number in range(FRAMES):
            frames.add(_frame(library.Batch, number))
        measured[name] = lambda frames=frames: frames.sample(BATCH)
    return measured


def _rows(batch: Any, rng: np.random.Generator) -> Any:
    return batch(
        obs=rng.random((RINGS, 17), np.float32),
        act=rng.random((RINGS, 6), np.float32),
        rew=rng.random(RINGS),
        terminated=np.zeros(RINGS, bool),
        truncated=rng.random(RINGS) < 0.005,
        obs_next=rng.random((RINGS, 17), np.float32),
        info=batch(),
    )


def _frame(batch: Any, number: int) -> Any:
    pixels = np.full((84, 84), number % 255, np.uint8)
    return batch(
        obs=pixels,
        act=number % 4,
        rew=1.0,
        terminated=False,
        truncated=number % 400 == 399,
        obs_next=pixels,
        info=batch(),
    )


def timed(measured: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Median microseconds of each call, which take turns."""
    spans: dict[str, list[float]] = {name: [] for name in measured}
    for call in measured.values():
        for _ in range(5):
            call()
    for _ in range(4):
        for name, call in measured.items():
            until = time.perf_counter() + seconds / 4
            while (begun := time.perf_counter()) < until:
                call()
                spans[name].append(time.perf_counter() - begun)
    return {name: statistics.median(times) * 1e6 for name, times in spans.items()}


def main(arguments: list[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json")
    parser.add_argument("--peer", help="an interpreter that has Tianshou, which measures the same")
    options = parser.parse_args(arguments)
    ours = calls(importlib.import_module("replay_service.episodic"))
    runs: dict[str, list[dict[str, float]]] = {"ours": [], "peer": []}
    for _ in range(ROUNDS if options.peer else 1):
        runs["ours"].append(timed(ours, options.seconds))
        if options.peer:
            runs["peer"].append(_peer(options.peer, options.seconds))
    rows = []
    for name in ours:
        row: dict[str, Any] = {"what": name, "ours us": statistics.median(run[name] for run in runs["ours"])}
        if options.peer:
            row["peer us"] = statistics.median(run[name] for run in runs["peer"])
            row["ours / peer"] = row["ours us"] / row["peer us"]
            row["at most"] = LIMITS[name]
        rows.append(row)
    from benchmarks.clock import report

    report("Episodic buffers", rows, options.json)


def _peer(python: str, seconds: float) -> dict[str, float]:
    done = subprocess.run(
        [python, str(Path(__file__)), "--measure", str(seconds)],
        capture_output=True,
        text=True,
        check=True,
        timeout=900,
    )
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:  # run by the peer's interpreter, which has nothing of ours
        print(json.dumps(timed(calls(importlib.import_module("tianshou.data")), float(sys.argv[2]))))
    else:
        main()
