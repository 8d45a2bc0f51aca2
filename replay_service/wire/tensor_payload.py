"""Payloads that travel apart from their headers, between devices: one group per direction.

NCCL has no tags and runs what it is given in order, so a send that waits for its receiver would hold up a receive behind it. With a
group for each direction, requests and replies cannot wait for each other. On a machine without CUDA the same class runs over gloo.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from replay_service.errors import ReplayTimeoutError, ServiceUnavailableError

__all__ = ["PayloadPath"]

POLL_EVERY_S = 0.00005


class PayloadPath:
    """One end of a pair of payload groups.

    Args:
        outgoing, incoming: the groups of the two directions.
        peer: the rank of the other end.
        device: where payloads lie.
    """

    def __init__(self, outgoing: Any, incoming: Any, peer: int, device: torch.device) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._peer = peer
        self.device = device

    def take(self, size_bytes: int) -> Tensor:
        """A flat uint8 tensor on the device; its allocator recycles memory by itself."""
        return torch.empty(size_bytes, dtype=torch.uint8, device=self.device)

    def start(self, flat: Tensor) -> Any:
        """Sends a payload without waiting; what is returned has to be kept until `finish`."""
        try:
            return self._outgoing.send([flat], self._peer, 0)
        except RuntimeError as error:
            raise ServiceUnavailableError(f"the other end must take payloads; {error}") from error

    def receive(self, size_bytes: int, timeout_s: float) -> Tensor:
        """The next payload, which the header has announced."""
        flat = self.take(size_bytes)
        try:
            work = self._incoming.recv([flat], self._peer, 0)
        except RuntimeError as error:
            raise ServiceUnavailableError(f"the other end must send its payload; {error}") from error
        self.finish(work, timeout_s)
        return flat

    def finish(self, work: Any, timeout_s: float) -> None:
        """Waits until a payload was moved.

        Raises:
            ReplayTimeoutError: not within `timeout_s`.
            ServiceUnavailableError: the other end is gone.
        """
        try:
            if self.device.type != "cuda":
                work.wait(timedelta(seconds=max(timeout_s, 0.001)))
                return
            # `wait` of NCCL only orders streams and knows no deadline: the host has to look.
            deadline = time.monotonic() + timeout_s
            while not work.is_completed():
                if time.monotonic() > deadline:
                    raise ReplayTimeoutError(f"timeout ({timeout_s} s) must cover the payload")
                time.sleep(POLL_EVERY_S)
            work.wait()
        except RuntimeError as error:
            if isinstance(error, ReplayTimeoutError):
                raise
            if "imed out" in str(error):
                raise ReplayTimeoutError(f"timeout ({timeout_s} s) must cover the payload") from error
            raise ServiceUnavailableError(f"the other end must be alive and reachable; {error}") from error

    def close(self) -> None:
        """Lets go of both groups."""
        for group in (self._outgoing, self._incoming):
            group.abort()
