"""Do records travel whole between two CUDA devices (or twice the same), and how fast?

    python -m benchmarks.nccl_pair [--rows 256] [--seconds 2] [--stand-in]

Two plain processes, no Ray: a service with its buffer and a client, headers over gloo and payloads over NCCL. Two ranks on one GPU need
NCCL_MULTI_RANK_GPU_ENABLE=1. `--stand-in` runs the same over gloo on the CPU.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from benchmarks.clock import in_turn, report
from benchmarks.rows import large_rows
from clients import ReplayClient
from replay_service import LazyTensorStorage, TensorDictReplayBuffer
from replay_service.records import ServiceAddress
from replay_service.service.dispatch import Dispatch
from replay_service.wire.rendezvous import CLIENT_RANK, SERVICE_RANK, make_group, make_payload_path, new_token
from replay_service.wire.tensor_group import TensorChannel, serve_link, show_token
from replay_service.wire.tensor_link import Link

__all__ = ["check", "main"]

ADDRESS = "127.0.0.1"
TIMEOUT_S = 60.0
CAPACITY = 2048


def main(arguments: list[str] | None = None) -> None:
    """Runs the check, then the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--stand-in", action="store_true")
    options = parser.parse_args(arguments)
    if not options.stand_in and not torch.cuda.is_available():
        print("nccl_pair must find a CUDA device; this machine has none: use --stand-in", file=sys.stderr)
        raise SystemExit(2)
    check(rows=options.rows, stand_in=options.stand_in)
    print(f"{options.rows} rows went there and back whole.")
    with paired(options.stand_in) as client:
        data = large_rows(32).to(_device(CLIENT_RANK, options.stand_in))
        for _ in range(options.rows // 32 + 1):
            client.extend(data)
        times = in_turn(
            {
                "extend 32 large": lambda: client.extend(data),
                f"sample {options.rows} large": lambda: client.sample(options.rows),
            },
            options.seconds,
        )
    row_bytes = sum(leaf.nbytes for leaf in data.values(True, True)) // 32
    moved = {name: row_bytes * int(name.split()[1]) for name in times}
    report(
        "Payloads between devices",
        [
            {"operation": name, "p50 us": t["p50_us"], "p99 us": t["p99_us"], "GB/s": moved[name] / t["p50_us"] / 1e3}
            for name, t in times.items()
        ],
        None,
    )


def check(rows: int, stand_in: bool = False) -> None:
    """Sends `rows` rows and reads them back; `AssertionError` if one differs."""
    data = large_rows(rows).to(_device(CLIENT_RANK, stand_in))
    with paired(stand_in) as client:
        client.extend(data)
        read = client.read_all_in_order()
        for key, value in data.items(True, True):
            assert read[key].device == value.device, key
            assert torch.equal(read[key], value), key
        batch = client.sample(rows)
        assert torch.equal(batch["obs"], data["obs"][batch["index"]])


@contextmanager
def paired(stand_in: bool) -> Iterator[ReplayClient]:
    """A client whose service runs in another process."""
    context = multiprocessing.get_context("spawn")
    token = new_token()
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/store"
        other = context.Process(target=_serve, args=(path, token, stand_in), daemon=True)
        other.start()
        link = _open(path, CLIENT_RANK, SERVICE_RANK, stand_in)
        show_token(link, token, TIMEOUT_S)
        client = ReplayClient(ServiceAddress("pair", "pair", 32), TensorChannel(link, "the pair's service"))
        try:
            yield client
        finally:
            client.close()
            other.join(10)


def _serve(path: str, token: bytes, stand_in: bool) -> None:
    torch.set_num_threads(1)
    storage = LazyTensorStorage(CAPACITY, device=_device(SERVICE_RANK, stand_in))
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=32)
    serve_link(
        _open(path, SERVICE_RANK, CLIENT_RANK, stand_in), token, Dispatch(buffer).serve, open_timeout_s=TIMEOUT_S
    )


def _open(path: str, rank: int, peer: int, stand_in: bool) -> Link:
    store = _Watched(path)
    device = _device(rank, stand_in)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    group = make_group(store, rank, ADDRESS, TIMEOUT_S)
    backend = "gloo" if stand_in else "nccl"
    return Link(group, peer, make_payload_path(store, rank, backend, device, TIMEOUT_S))


class _Watched(dist.FileStore):  # type: ignore[misc]
    """A file store; its addresses are not looked at, since nobody else is on this machine's loopback."""

    published = b""

    def __init__(self, path: str) -> None:
        super().__init__(path, 2)


def _device(rank: int, stand_in: bool) -> torch.device:
    if stand_in:
        return torch.device("cpu")
    return torch.device("cuda", rank % torch.cuda.device_count())


if __name__ == "__main__":
    main()
