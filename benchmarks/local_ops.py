"""What do the operations of an in-process buffer cost?

    python -m benchmarks.local_ops [--seconds 2] [--json FILE] [--peer PYTHON --script transport_ops.py]

With `--peer`, the same four operations of another library are timed by the interpreter that has it, three times in turn with ours.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from typing import Any

from benchmarks.clock import in_turn, report
from benchmarks.rows import KINDS
from replay_service import LazyTensorStorage, TensorDictReplayBuffer

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json")
    parser.add_argument("--peer", help="another interpreter, to run --script with")
    parser.add_argument("--script", default="transport_ops.py")
    options = parser.parse_args(arguments)
    rows = [row for kind in KINDS for row in _measure(kind, options.seconds)]
    report("Operations of an in-process buffer", rows, options.json)
    if options.peer:
        report("Beside the peer (medians of 3, runs in turn)", _beside(options), None)


def _measure(kind: str, seconds: float) -> list[dict[str, Any]]:
    make, capacity, written, drawn = KINDS[kind]
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=drawn)
    data = make(written)
    for _ in range(2 * drawn // written + 2):
        buffer.extend(data)
    times = in_turn({"extend": lambda: buffer.extend(data), "sample": buffer.sample}, seconds)
    return [
        {
            "operation": f"{verb} {rows} {kind}",
            "p50 us": times[verb]["p50_us"],
            "p99 us": times[verb]["p99_us"],
            "per s": times[verb]["per_s"],
        }
        for verb, rows in (("extend", written), ("sample", drawn))
    ]


def _beside(options: argparse.Namespace) -> list[dict[str, Any]]:
    runs: dict[str, list[dict[str, Any]]] = {"replay_service": [], "torchrl": []}
    for _ in range(3):
        for name, python in (("replay_service", sys.executable), ("torchrl", options.peer)):
            command = [
                python,
                options.script,
                "--impl",
                name,
                "--transport",
                "direct",
                "--seconds",
                str(options.seconds),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
            runs[name].append(json.loads(done.stdout.strip().splitlines()[-1]))
    rows = []
    for operation in ("extend_small", "sample_small", "extend_large", "sample_large"):
        ours, peer = (statistics.median(run[operation]["p50_us"] for run in runs[name]) for name in runs)
        rows.append({"operation": operation, "ours us": ours, "peer us": peer, "times faster": peer / ours})
    return rows


if __name__ == "__main__":
    main()
