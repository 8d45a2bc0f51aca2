"""What does an operation through a handle cost, as a multiple of a bare call that carries the same bytes?

    python -m benchmarks.remote_ops [--transport ray|distributed|auto ...] [--seconds 2] [--json FILE]
    python -m benchmarks.remote_ops --peer PYTHON --script transport_ops.py      # a peer's figures from another interpreter

For Ray the bare call is an actor method that takes or returns one NumPy array; for the tensor channel it is a request and a reply over
a gloo pair. Both sides run in turn, in one run. For `sample` the bare call has the gather added (measured in this process).
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import ray
import torch

from benchmarks.clock import in_turn, report
from benchmarks.raw_gloo import RawGloo, raw_pair
from benchmarks.rows import KINDS
from replay_service import LazyTensorStorage, TensorDictReplayBuffer

__all__ = ["main"]


class RawActor:
    """An actor that moves bytes and does nothing else."""

    def take(self, array: np.ndarray) -> None:
        """Receives an array."""

    def give(self, size: int) -> np.ndarray:
        """Returns an array of `size` bytes."""
        return np.ones(size, np.uint8)


def main(arguments: list[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--transport", nargs="+", default=["ray", "distributed"], choices=["ray", "distributed", "auto"]
    )
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json")
    parser.add_argument("--peer", help="another interpreter, to run --script with")
    parser.add_argument("--script", default="transport_ops.py")
    parser.add_argument("--impl", default="torchrl")
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    with _ray():
        for transport in options.transport:
            for kind in KINDS:
                rows += _measure(transport, kind, options.seconds)
    report("Operations through a handle", rows, options.json)
    if options.peer:
        for transport in options.transport:
            print(json.dumps(_peer(options, transport)))


def _measure(transport: str, kind: str, seconds: float) -> list[dict[str, Any]]:
    make, capacity, written, drawn = KINDS[kind]
    owner = TensorDictReplayBuffer(
        storage=partial(LazyTensorStorage, capacity),
        batch_size=drawn,
        service_backend="ray",
        service_backend_options={"remote_config": {"num_cpus": 0}},
        transport=transport,
    )
    data = make(written)
    row_bytes = sum(leaf.nbytes for leaf in data.values(True, True)) // written
    with owner, _bare(transport) as (send, fetch):
        client = owner.client()
        for _ in range(2 * drawn // written + 2):
            client.extend(data)
        gather = _gather(kind)
        times = in_turn(
            {
                "extend": lambda: client.extend(data),
                "bare extend": lambda: send(row_bytes * written),
                "sample": client.sample,
                "bare sample": lambda: fetch((row_bytes + 8) * drawn),
                "gather": gather,
            },
            seconds,
        )
    bare = {
        "extend": times["bare extend"]["p50_us"],
        "sample": times["bare sample"]["p50_us"] + times["gather"]["p50_us"],
    }
    return [
        {
            "transport": transport,
            "operation": f"{verb} {rows} {kind}",
            "p50 us": times[verb]["p50_us"],
            "p99 us": times[verb]["p99_us"],
            "per s": times[verb]["per_s"],
            "bare us": bare[verb],
            "times bare": times[verb]["p50_us"] / bare[verb],
        }
        for verb, rows in (("extend", written), ("sample", drawn))
    ]


@contextmanager
def _bare(transport: str) -> Iterator[tuple[Callable[[int], Any], Callable[[int], Any]]]:
    """Calls that send, and that fetch, so many bytes with nothing around them."""
    if transport == "ray":
        actor: Any = ray.remote(RawActor).options(num_cpus=0).remote()
        arrays: dict[int, np.ndarray] = {}
        yield (
            lambda size: ray.get(actor.take.remote(arrays.setdefault(size, np.ones(size, np.uint8)))),
            lambda size: ray.get(actor.give.remote(size)),
        )
        ray.kill(actor)
        return
    with raw_pair() as pair:
        yield partial(RawGloo.send, pair), partial(RawGloo.fetch, pair)


def _gather(kind: str) -> Callable[[], Any]:
    """The gather alone: random rows into memory that is there already."""
    make, _, _, drawn = KINDS[kind]
    columns = list(make(4096).values(True, True))
    outs = [torch.empty(drawn, *column.shape[1:], dtype=column.dtype) for column in columns]

    def run() -> None:
        index = torch.randint(0, 4096, (drawn,))
        for column, out in zip(columns, outs, strict=True):
            torch.index_select(column, 0, index, out=out)

    return run


@contextmanager
def _ray() -> Iterator[None]:
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
        object_store_memory=2 * 1024**3,
    )
    try:
        yield
    finally:
        ray.shutdown()


def _peer(options: argparse.Namespace, transport: str) -> dict[str, Any]:
    """The figures that `options.script` prints when another interpreter runs it."""
    command = [options.peer, options.script, "--impl", options.impl, "--transport", transport]
    done = subprocess.run(
        [*command, "--seconds", str(options.seconds)], capture_output=True, text=True, check=True, timeout=600
    )
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


if __name__ == "__main__":
    main()
