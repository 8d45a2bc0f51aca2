"""What do returns cost: advantages of 1,000,000 steps, and 3-step returns of a batch?

    python -m benchmarks.returns [--steps 1000000] [--seconds 3] [--json FILE] [--peer PYTHON]

With `--peer`, `returns_peer.py` is run by the interpreter given, which has Tianshou 2, three times in turn with ours.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.clock import in_turn, report
from replay_service.episodic import Batch, VectorReplayBuffer
from replay_service.episodic.returns import episodic_return, gae, n_step_return

__all__ = ["main"]

LANES, BATCH, HORIZON = 16, 256, 200
ARRAYS, BUFFER, STEPS = "GAE of arrays", "GAE of a buffer", "3-step returns of 256"


def main(arguments: list[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json")
    parser.add_argument("--peer", help="another interpreter, which has Tianshou 2")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    calls = _calls(options.steps)
    runs: dict[str, list[dict[str, float]]] = {"ours": [], "peer": []}
    for _ in range(3 if options.peer else 1):
        times = in_turn(calls, options.seconds, warm=2)
        runs["ours"].append({name: summary["p50_us"] for name, summary in times.items()})
        if options.peer:
            runs["peer"].append(_peer(options))
    ours, peer = (_medians(found) for found in runs.values())
    rows: list[dict[str, Any]] = []
    for name, micros in ours.items():
        row = {"what": name, "ours us": micros}
        if peer:
            row.update({"peer us": peer[name], "ours / peer": micros / peer[name]})
        rows.append(row)
    report(f"Returns, {options.steps:,} steps (medians)", rows, options.json)


def _medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(run[name] for run in runs) for name in (runs[0] if runs else {})}


def _peer(options: argparse.Namespace) -> dict[str, float]:
    script = Path(__file__).with_name("returns_peer.py")
    command = [options.peer, str(script), str(options.steps), str(options.seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _calls(steps: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    rewards, values, after = (rng.normal(size=steps) for _ in range(3))
    ends = np.arange(steps) % HORIZON == HORIZON - 1
    buffer = _filled(steps, rewards, ends)
    everything = buffer.sample_indices(0)
    some = buffer.sample_indices(BATCH)
    target = torch.ones(BATCH)
    return {
        ARRAYS: lambda: gae(rewards, values, after, ends, ends),
        BUFFER: lambda: episodic_return(buffer, everything, after, values),
        STEPS: lambda: n_step_return(buffer, some, lambda _, slots: target, n_step=3),
    }


def _filled(steps: int, rewards: np.ndarray, ends: np.ndarray) -> VectorReplayBuffer:
    buffer = VectorReplayBuffer(steps, LANES)
    lanes = np.repeat(np.arange(LANES), steps // LANES)
    rows = Batch(
        obs=rewards, act=rewards, rew=rewards, terminated=ends, truncated=np.zeros_like(ends), obs_next=rewards
    )
    buffer.add(rows[: len(lanes)], buffer_ids=lanes)
    return buffer


if __name__ == "__main__":
    main()
