"""The least that a request and a reply over gloo cost: a pair of processes that move bytes and do nothing else."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["RawGloo", "raw_pair"]

HEADER = 16
STOP = -1


def _group(rank: int, path: str) -> Any:
    return dist.ProcessGroupGloo(dist.FileStore(path, 2), rank, 2, timedelta(seconds=60))


def _serve(path: str, ready: Any) -> None:
    torch.set_num_threads(1)
    group = _group(1, path)
    ready.set()
    head = torch.zeros(2, dtype=torch.int64)
    buffers: dict[int, torch.Tensor] = {}
    while True:
        group.recv([head], 0, 0).wait()
        taken, given = head.tolist()
        if taken == STOP:
            return
        for size in (taken, given):
            buffers.setdefault(size, torch.ones(max(size, 1), dtype=torch.uint8))
        if taken:
            group.recv([buffers[taken]], 0, 1).wait()
        group.send([buffers[given]], 0, 2).wait()


class RawGloo:
    """The asking end."""

    def __init__(self, path: str) -> None:
        self._group = _group(0, path)
        self._head = torch.zeros(2, dtype=torch.int64)
        self._buffers: dict[int, torch.Tensor] = {}

    def send(self, size: int) -> None:
        """Sends `size` bytes; waits for a reply of one byte."""
        self._exchange(size, 1)

    def fetch(self, size: int) -> None:
        """Asks for `size` bytes and receives them."""
        self._exchange(0, size)

    def stop(self) -> None:
        """Ends the other process."""
        self._head[0] = STOP
        self._group.send([self._head], 1, 0).wait()

    def _exchange(self, given: int, taken: int) -> None:
        self._head[0], self._head[1] = given, taken
        reply = self._buffer(taken)
        waiting = self._group.recv([reply], 1, 2)
        self._group.send([self._head], 1, 0).wait()
        if given:
            self._group.send([self._buffer(given)], 1, 1).wait()
        waiting.wait()

    def _buffer(self, size: int) -> torch.Tensor:
        if size not in self._buffers:
            self._buffers[size] = torch.ones(size, dtype=torch.uint8)
        return self._buffers[size]


@contextmanager
def raw_pair() -> Iterator[RawGloo]:
    """A pair of processes over gloo; the other one ends with the block."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ready = context.Event()
        other = context.Process(target=_serve, args=(f"{folder}/store", ready), daemon=True)
        other.start()
        pair = RawGloo(f"{folder}/store")
        ready.wait(60)
        try:
            yield pair
        finally:
            pair.stop()
            other.join(10)
