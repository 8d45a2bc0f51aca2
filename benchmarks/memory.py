"""Does a buffer's process grow, however often it is written to?

    python -m benchmarks.memory [--extends 1000000] [--json FILE]

One row is extended at a time into a ring of 10,000, with generation stamps, priorities and slices that follow it; every tenth time a batch
is drawn and its priorities are set. What the process holds is read ten times on the way, after the ring was filled once.
"""

from __future__ import annotations

import argparse
from typing import Any

import psutil
import torch
from tensordict import TensorDict

from benchmarks.clock import report
from replay_service import (
    LazyTensorStorage,
    PrioritizedSliceSampler,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)

__all__ = ["main"]

CAPACITY = 10_000
EPISODE = 50
READINGS = 10


def main(arguments: list[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extends", type=int, default=1_000_000)
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # one row at a time: a second thread would only be waited for
    rows = _measured(options.extends)
    report("Resident memory while one row after the other is extended", rows, options.json)
    grown = rows[-1]["resident MB"] / rows[0]["resident MB"] - 1
    print(f"{100 * grown:.2f}% more after {rows[-1]['extends']:,} extends than after {rows[0]['extends']:,}")


def _measured(extends: int) -> list[dict[str, Any]]:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(CAPACITY),
        sampler=PrioritizedSliceSampler(CAPACITY, 0.7, 0.5, slice_len=8),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        batch_size=64,
    )
    steps = [_step(step) for step in range(EPISODE)]
    process = psutil.Process()
    rows = []
    for turn in range(1, extends + 1):
        buffer.extend(steps[turn % EPISODE])
        if turn % 10 == 0 and turn > EPISODE:
            batch = buffer.sample()
            buffer.update_priority(batch["index"], torch.ones(64), generation=batch["index_generation"])
        if turn % max(extends // READINGS, 1) == 0 and turn >= CAPACITY:
            rows.append({"extends": turn, "resident MB": process.memory_info().rss / 1e6})
    return rows


def _step(step: int) -> TensorDict:
    done = torch.tensor([[step == EPISODE - 1]])
    return TensorDict(
        {"observation": torch.zeros(1, 8), "action": torch.zeros(1, 2), "next": TensorDict({"done": done}, [1])}, [1]
    )


if __name__ == "__main__":
    main()
