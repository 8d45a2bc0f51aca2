"""Do draws of slices and windows get dearer as the buffer fills?

    python -m benchmarks.slices [--seconds 2] [--json FILE]

Batches of 256 steps, 16 a slice, from 10,000 and from 1,000,000 steps of episodes of 50; between draws 256 new steps are written, so that
the ring turns and nothing that a draw needs can be computed once and for all.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict

from benchmarks.clock import in_turn, report
from replay_service import (
    LazyTensorStorage,
    PrioritizedSliceSampler,
    Sampler,
    Sequence,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    StreamingSliceSampler,
    TensorDictReplayBuffer,
)

__all__ = ["flatness", "main"]

BATCH, SLICE, EPISODE = 256, 16, 50
SIZES = (10_000, 1_000_000)

SAMPLERS: dict[str, Callable[[int], Sampler | None]] = {
    "SliceSampler": lambda size: SliceSampler(slice_len=SLICE),
    "short episodes, too": lambda size: SliceSampler(slice_len=SLICE, strict_length=False),
    "without replacement": lambda size: SliceSamplerWithoutReplacement(slice_len=SLICE),
    "prioritized": lambda size: PrioritizedSliceSampler(size, 0.6, 0.4, slice_len=SLICE),
    "streaming": lambda size: StreamingSliceSampler(slice_len=SLICE),
    "Sequence": lambda size: None,
}


def main(arguments: list[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    flatness(options.seconds, options.json)


def flatness(seconds: float, json: str | None = None) -> None:
    """Prints what a draw costs at both sizes."""
    rows = [_measured(name, make, seconds) for name, make in SAMPLERS.items()]
    report(f"Draws of {BATCH} steps in slices of {SLICE}, p50 us", rows, json)


def _measured(name: str, make: Callable[[int], Sampler | None], seconds: float) -> dict[str, Any]:
    calls: dict[str, Callable[[], Any]] = {}
    new = _steps(BATCH)
    for size in SIZES:
        buffer = _filled(size, make(size))
        calls[f"extend {size:,}"] = partial(buffer.extend, new)
        calls[f"{size:,}"] = buffer.sample
    times = in_turn(calls, seconds)
    few, many = (times[f"{size:,}"]["p50_us"] for size in SIZES)
    columns = {f"{size:,}": times[f"{size:,}"]["p50_us"] for size in SIZES}
    return {"sampler": name, **columns, "ratio": many / few}


def _filled(size: int, sampler: Sampler | None) -> TensorDictReplayBuffer:
    windows: dict[str, Any] = {"batch_size": BATCH}
    if sampler is None:
        windows = {"sample_unit": Sequence(SLICE), "batch_size": BATCH // SLICE}
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(size), sampler=sampler, generator=torch.Generator().manual_seed(0), **windows
    )
    buffer.extend(_steps(size))
    buffer.sample()
    return buffer


def _steps(count: int) -> TensorDict:
    done = (torch.arange(count) % EPISODE == EPISODE - 1)[:, None]
    following = TensorDict({"done": done, "reward": torch.ones(count, 1)}, [count])
    return TensorDict({"obs": torch.randn(count, 4), "action": torch.ones(count), "next": following}, [count])


if __name__ == "__main__":
    main()
