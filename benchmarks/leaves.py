"""Does the number of fields matter to what a payload costs?

    python -m benchmarks.leaves [--seconds 3] [--transport distributed]

A batch of 14 MB as 1, 8 and 32 leaves, sampled in turn through one handle each.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from functools import partial
from typing import Any

import ray
import torch
from tensordict import TensorDict

from benchmarks.clock import in_turn, report
from replay_service import LazyTensorStorage, TensorDictReplayBuffer

__all__ = ["main"]

ROW_BYTES = 56_320
BATCH = 256
CAPACITY = 2048


def main(arguments: list[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--transport", default="distributed", choices=["ray", "distributed", "auto"])
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        with ExitStack() as stack:
            clients = {leaves: _client(stack, leaves, options.transport) for leaves in (1, 8, 32)}
            times = in_turn({str(leaves): client.sample for leaves, client in clients.items()}, options.seconds)
    finally:
        ray.shutdown()
    first = times["1"]["p50_us"]
    rows = [
        {
            "leaves": leaves,
            "p50 us": t["p50_us"],
            "GB/s": BATCH * ROW_BYTES / t["p50_us"] / 1e3,
            "times one leaf": t["p50_us"] / first,
        }
        for leaves, t in times.items()
    ]
    report(f"14 MB per batch, {options.transport}", rows, options.json)


def _client(stack: ExitStack, leaves: int, transport: str) -> Any:
    owner: Any = TensorDictReplayBuffer(
        storage=partial(LazyTensorStorage, CAPACITY),
        batch_size=BATCH,
        service_backend="ray",
        service_backend_options={"remote_config": {"num_cpus": 0}},
        transport=transport,
    )
    client = stack.enter_context(owner).client()
    data = TensorDict(
        {f"field{i}": torch.randint(0, 255, (BATCH, ROW_BYTES // leaves), dtype=torch.uint8) for i in range(leaves)},
        [BATCH],
    )
    for _ in range(CAPACITY // BATCH):
        client.extend(data)
    return client


if __name__ == "__main__":
    main()
