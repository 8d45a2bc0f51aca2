"""How the two ends of a tensor channel find each other: through stores that travel over whatever the caller has, and a token.

No port of a key-value server is opened. Each end publishes the address its own group listens on; the service keeps both in a
`Mailbox`, and the client reaches it by two calls that the caller provides (over Ray, in this library).
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from replay_service.errors import ReplayTimeoutError, ServiceUnavailableError, TransportUnavailableError
from replay_service.wire.listeners import deafen
from replay_service.wire.tensor_payload import PayloadPath
from replay_service.wire.yielding import yielding_threads

__all__ = [
    "CLIENT_RANK",
    "CROWDED",
    "NO",
    "SERVICE_RANK",
    "YES",
    "Mailbox",
    "MailboxStore",
    "RemoteStore",
    "is_token",
    "make_group",
    "make_payload_path",
    "new_token",
    "payload_path",
]

# torch.distributed has no annotations of these.
Store: Any = dist.Store  # type: ignore[attr-defined]
Gloo: Any = dist.ProcessGroupGloo
Prefix: Any = dist.PrefixStore  # type: ignore[attr-defined]

CLIENT_RANK = 0
SERVICE_RANK = 1
CROWDED = "crowded"
"""Key of a mailbox: `YES` if the service has more clients than processors."""

YES, NO = b"1", b"0"
TOKEN_BYTES = 32
POLL_EVERY_S = 0.002


def new_token() -> bytes:
    """A fresh secret, which the service hands out over Ray and the client shows when the channel opens."""
    return secrets.token_bytes(TOKEN_BYTES)


def is_token(shown: bytes, expected: bytes) -> bool:
    """Whether the right token was shown; takes as long for a wrong one."""
    return hmac.compare_digest(shown, expected)


class Mailbox:
    """Key and value pairs that two threads exchange."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def put(self, key: str, value: bytes) -> None:
        """Sets a value and wakes those who wait for it."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def look(self, key: str) -> bytes | None:
        """The value, or None if it is not there yet."""
        with self._changed:
            return self._values.get(key)

    def wait(self, key: str, timeout_s: float) -> bytes:
        """The value, once it is there.

        Raises:
            ReplayTimeoutError: it did not come within `timeout_s`.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._values, timeout_s):
                raise ReplayTimeoutError(f"the other end must publish its address within {timeout_s} s")
            return self._values[key]


class MailboxStore(Store):  # type: ignore[misc]
    """The store of the end that keeps the mailbox."""

    def __init__(self, mailbox: Mailbox, timeout_s: float) -> None:
        super().__init__()
        self.published = b""
        self._mailbox = mailbox
        self._timeout_s = timeout_s

    def set(self, key: str, value: bytes | str) -> None:
        """Publishes a value."""
        self.published = value.encode() if isinstance(value, str) else bytes(value)
        self._mailbox.put(key, self.published)

    def get(self, key: str) -> bytes:
        """The value under `key`; waits for it."""
        return self._mailbox.wait(key, self._timeout_s)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Waits until every key is there."""
        for key in keys:
            self._mailbox.wait(key, self._timeout_s)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether every key is there."""
        return all(self._mailbox.look(key) is not None for key in keys)


class RemoteStore(Store):  # type: ignore[misc]
    """The store of the end that reaches the mailbox through calls.

    Args:
        put, look: the mailbox's calls, wherever it is.
        timeout_s: how long a value is waited for, in seconds.
    """

    def __init__(
        self, put: Callable[[str, bytes], None], look: Callable[[str], bytes | None], timeout_s: float
    ) -> None:
        super().__init__()
        self.published = b""
        self._put = put
        self._look = look
        self._timeout_s = timeout_s

    def set(self, key: str, value: bytes | str) -> None:
        """Publishes a value."""
        self.published = value.encode() if isinstance(value, str) else bytes(value)
        self._put(key, self.published)

    def get(self, key: str) -> bytes:
        """The value under `key`; waits for it."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            value = self._look(key)
            if value is not None:
                return value
            if time.monotonic() > deadline:
                raise ReplayTimeoutError(f"the service must publish its address within {self._timeout_s} s")
            time.sleep(POLL_EVERY_S)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Waits until every key is there."""
        for key in keys:
            self.get(key)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether every key is there."""
        return all(self._look(key) is not None for key in keys)


def make_group(store: Any, rank: int, address: str, timeout_s: float, *, crowded: bool = False) -> Any:
    """One end of a pair: a gloo group of two, apart from the application's own, that listens on this node's `address` only.

    Args:
        store: what the ends find each other through.
        rank: `CLIENT_RANK` or `SERVICE_RANK`.
        address: this node's own.
        timeout_s: how long the other end is waited for, in seconds.
        crowded: the service has more clients than processors; gloo's threads yield then.

    Raises:
        ServiceUnavailableError: the other end did not come, or cannot be reached.
    """
    options = Gloo._Options()
    with yielding_threads() if crowded else nullcontext():
        options._devices = [Gloo.create_device(hostname=address)]
    options._timeout = timedelta(seconds=timeout_s)
    options._threads = 1
    try:
        group = Gloo(store, rank, 2, options)
    except (RuntimeError, ReplayTimeoutError) as error:
        raise ServiceUnavailableError(f"the other end must be reachable from {address}; {error}") from error
    deafen(address, store.published)
    return group


def payload_path(store: Any, rank: int, backend: str, timeout_s: float) -> PayloadPath | None:
    """The way of payloads for `backend`: their own groups between CUDA devices for `"nccl"`, none for `"gloo"`."""
    if backend != "nccl":
        return None
    if not torch.cuda.is_available():
        raise TransportUnavailableError("backend ('nccl') must find a CUDA device; this process has none: use 'gloo'")
    device = torch.device("cuda", torch.cuda.current_device())
    return make_payload_path(store, rank, backend, device, timeout_s)


def make_payload_path(store: Any, rank: int, backend: str, device: torch.device, timeout_s: float) -> PayloadPath:
    """One end of the payload groups of a pair, one group per direction; `backend` is `"nccl"`, or `"gloo"` as its stand-in.

    Raises:
        TransportUnavailableError: the backend does not exist here.
        ServiceUnavailableError: the other end did not come.
    """
    if backend == "nccl" and not dist.is_nccl_available():
        raise TransportUnavailableError("backend ('nccl') must be part of this torch; it has none: use 'gloo'")
    try:
        up, down = (_payload_group(Prefix(way, store), rank, backend, timeout_s) for way in ("up", "down"))
    except RuntimeError as error:
        raise ServiceUnavailableError(f"the other end must open its payload groups; {error}") from error
    outgoing, incoming = (up, down) if rank == CLIENT_RANK else (down, up)
    return PayloadPath(outgoing, incoming, SERVICE_RANK if rank == CLIENT_RANK else CLIENT_RANK, device)


def _payload_group(store: Any, rank: int, backend: str, timeout_s: float) -> Any:
    if backend == "nccl":
        nccl: Any = dist.ProcessGroupNCCL
        return nccl(store, rank, 2, timedelta(seconds=timeout_s))
    return Gloo(store, rank, 2, timedelta(seconds=timeout_s))
