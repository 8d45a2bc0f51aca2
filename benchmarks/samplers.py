"""What do draws by priority cost, and do they get dearer as the buffer fills?

    python -m benchmarks.samplers [--seconds 2] [--json FILE] [--peer PYTHON --script prioritized_local.py]
                                  [--local-peer PYTHON --local-script transport_ops.py]

A batch is drawn from 10,000 and from 1,000,000 records of five small columns: gathered, with weights, and its priorities set anew.
Slices are drawn from as many steps (`benchmarks.slices`).
Whole operations of a plain buffer come last (`benchmarks.local_ops`).
With `--peer`, the script of other libraries is run by the interpreter that has them, three times in turn with ours; with `--local-peer`
that of the operations.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
from typing import Any

import torch
from tensordict import TensorDict

from benchmarks import local_ops
from benchmarks.clock import in_turn, report
from benchmarks.slices import flatness
from replay_service import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

__all__ = ["main"]

BATCH = 256
SIZES = (10_000, 1_000_000)
LINE = re.compile(r"^(?P<name>.+?)\s+p50 (?P<p50>[\d.]+) us\s+p99 (?P<p99>[\d.]+) us$")


def main(arguments: list[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json")
    parser.add_argument("--peer", help="another interpreter, to run --script with")
    parser.add_argument("--script", default="prioritized_local.py")
    parser.add_argument("--local-peer", help="another interpreter, to run --local-script with")
    parser.add_argument("--local-script", default="transport_ops.py")
    options = parser.parse_args(arguments)
    buffers = {size: _filled(size) for size in SIZES}
    rows = [_measured(buffer, options.seconds) for buffer in buffers.values()]
    report("Draws by priority, 256 of 5 columns", rows, options.json)
    largest = rows[-1]["sample + update us"]
    print(f"{SIZES[-1]:,} records cost {largest / rows[0]['sample + update us']:.2f} times what {SIZES[0]:,} do")
    flatness(options.seconds)
    if options.peer:
        report(
            f"Beside the peer at {SIZES[-1]:,} records (medians of 3, runs in turn)",
            _beside(buffers[SIZES[-1]], options),
            None,
        )
    beside = ["--peer", options.local_peer, "--script", options.local_script] if options.local_peer else []
    local_ops.main(["--seconds", str(options.seconds), *beside])


def _filled(size: int) -> TensorDictPrioritizedReplayBuffer:
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=0.6,
        beta=0.4,
        storage=LazyTensorStorage(size),
        batch_size=BATCH,
        generator=torch.Generator().manual_seed(0),
    )
    columns = {
        "obs": torch.randn(size, 4),
        "action": torch.ones(size),
        "reward": torch.ones(size),
        "next_obs": torch.randn(size, 4),
        "done": torch.zeros(size),
    }
    buffer.extend(TensorDict(columns, [size]))
    buffer.update_priority(torch.arange(size), torch.rand(size))
    return buffer


def _measured(buffer: TensorDictPrioritizedReplayBuffer, seconds: float) -> dict[str, Any]:
    times = _times(buffer, seconds)
    return {
        "records": f"{len(buffer):,}",
        "sample us": times["sample"]["p50_us"],
        "p99 us": times["sample"]["p99_us"],
        "update us": times["update"]["p50_us"],
        "update p99 us": times["update"]["p99_us"],
        "sample + update us": times["sample"]["p50_us"] + times["update"]["p50_us"],
    }


def _times(buffer: TensorDictPrioritizedReplayBuffer, seconds: float) -> dict[str, dict[str, float]]:
    drawn = buffer.sample()["index"]

    def update() -> None:
        buffer.update_priority(drawn, torch.rand(BATCH))

    return in_turn({"sample": buffer.sample, "update": update}, seconds)


def _beside(buffer: TensorDictPrioritizedReplayBuffer, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Ours and every `… sample 256` and `… update 256` that the script prints."""
    runs: dict[str, list[float]] = {}
    for _ in range(3):
        times = _times(buffer, options.seconds)
        for verb, summary in times.items():
            runs.setdefault(f"ours {verb}", []).append(summary["p50_us"])
        command = [options.peer, options.script]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
        for found in filter(None, map(LINE.match, done.stdout.splitlines())):
            runs.setdefault(found["name"], []).append(float(found["p50"]))
    medians = {name: statistics.median(times) for name, times in runs.items()}
    ours = medians.pop("ours sample"), medians.pop("ours update")
    rows = [{"what": "ours", "sample us": ours[0], "update us": ours[1], "both us": sum(ours), "ours / peer": 1.0}]
    for name, sample in medians.items():
        update = medians.get(name.replace(" sample ", " update "))
        if " prioritized sample " in name and update is not None:
            both = sample + update
            library = name.split(" ", 1)[0]
            rows.append(
                {
                    "what": library,
                    "sample us": sample,
                    "update us": update,
                    "both us": both,
                    "ours / peer": sum(ours) / both,
                }
            )
    return rows


if __name__ == "__main__":
    main()
