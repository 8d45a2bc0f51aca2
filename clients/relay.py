"""A forked process's way to its service: a process of its own, which joins Ray in its place and relays what a rendezvous needs."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from clients.relay_frames import bytes_of, frame_of, taken_from, text_of
from replay_service.errors import ReplayError, ReplayTimeoutError, ServiceUnavailableError
from replay_service.wire.failures import error_from
from replay_service.wire.ray_objects import require_ray

__all__ = ["Relay", "RelayedIntroduction", "relay_to"]

PROGRAM = "clients.relay_process"
ROOT = Path(__file__).resolve().parent.parent
CHUNK_BYTES = 1 << 16
FAREWELL_S = 2.0


class Relay:
    """Starts the process at the first request, and ends it when the last handle that uses it is closed.

    It may be used by several threads. After a request that took too long the process goes on, and the late reply is dropped: joining
    Ray takes seconds, and the next call finds it done.

    Args:
        address: the Ray that the process joins, `host:port`.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._process: subprocess.Popen[bytes] | None = None
        self._received = bytearray()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._users: set[str] = set()

    def ask(self, request: dict[str, Any], timeout_s: float) -> Any:
        """The answer to a request.

        Raises:
            ReplayTimeoutError: none within `timeout_s`.
            ServiceUnavailableError: the process, Ray or the service is gone; or what else the answer reports.
        """
        deadline = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=timeout_s):
            raise self._late(timeout_s)
        try:
            number = self._sent(request, timeout_s)
            while True:
                reply = self._next_reply(deadline, timeout_s)
                if reply["id"] == number:
                    break
        finally:
            self._lock.release()
        if "error" in reply:
            raise error_from(*reply["error"])
        return reply["result"]

    def tell(self, request: dict[str, Any], timeout_s: float) -> None:
        """Sends a request whose answer nobody waits for."""
        if self._lock.acquire(timeout=timeout_s):
            try:
                self._sent(request, timeout_s)
            finally:
                self._lock.release()

    @property
    def runs(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def use(self, client_id: str) -> None:
        """Counts a handle."""
        self._users.add(client_id)

    def leave(self, client_id: str) -> None:
        """Counts it no more."""
        self._users.discard(client_id)
        if not self._users:
            with self._lock:
                self._end()

    def leave_behind(self) -> None:
        """Lets go of a process that belongs to the process this one was forked from, which must not hold its input open."""
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            process.returncode = 0  # not ours to wait for

    def _sent(self, request: dict[str, Any], timeout_s: float) -> int:
        process = self._process
        if process is None or process.poll() is not None:
            self._end()
            process = self._process = _started(self._address)
        number = next(self._numbers)
        frame = frame_of({**request, "id": number, "timeout_s": timeout_s})
        try:
            whole = process.stdin is not None and process.stdin.write(frame) == len(frame)
        except OSError as error:
            raise self._gone() from error
        if not whole:  # it has stopped reading; half a request would make the next one senseless
            self._end()
            raise self._late(timeout_s)
        return number

    def _next_reply(self, deadline: float, timeout_s: float) -> dict[str, Any]:
        if self._process is None or self._process.stdout is None:
            raise self._gone()
        output = self._process.stdout.fileno()
        readable = select.poll()
        readable.register(output, select.POLLIN)
        while True:
            reply = taken_from(self._received)
            if reply is not None:
                return reply
            if not readable.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise self._late(timeout_s)
            chunk = os.read(output, CHUNK_BYTES)
            if not chunk:
                raise self._gone()
            self._received += chunk

    def _gone(self) -> ServiceUnavailableError:
        self._end()
        return ServiceUnavailableError(
            "relay must be alive: a forked process reaches Ray through one, and it has ended; the next call starts another"
        )

    @staticmethod
    def _late(timeout_s: float) -> ReplayTimeoutError:
        return ReplayTimeoutError(
            f"timeout ({timeout_s} s) must cover the call; the relay through which a forked process reaches Ray has not answered, "
            f"which takes some seconds at its first call"
        )

    def _end(self) -> None:
        process, self._process = self._process, None
        self._received.clear()
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            process.wait(FAREWELL_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _started(address: str) -> subprocess.Popen[bytes]:
    """A new relay, which finds this package wherever it was found by us and nothing else in the directory we happen to be in."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", PROGRAM, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"},
            start_new_session=True,  # an interrupt from the keyboard is for those who have work to end
        )
    except OSError as error:
        raise ServiceUnavailableError(f"relay ({sys.executable} -m {PROGRAM}) must start; {error}") from error
    if process.stdin is not None:
        os.set_blocking(process.stdin.fileno(), False)
    return process


class RelayedIntroduction:
    """Asks through a relay."""

    actor = None

    def __init__(self, relay: Relay, name: str, namespace: str) -> None:
        self._relay = relay
        self._name = name
        self._service = [name, namespace]
        self._node = ""

    def describe(self, timeout_s: float) -> dict[str, Any]:
        """What the service says of itself that JSON can hold."""
        known: dict[str, Any] = self._relay.ask(self._request("describe"), timeout_s)
        self._node = known["node"]
        return known

    def transforms(self, timeout_s: float) -> None:
        """None, or a refusal: where there are any, they travel over Ray alone."""
        if self.describe(timeout_s)["has_transforms"]:
            require_ray(self._name)

    def node_address(self) -> str:
        """As the relay's Ray says: it is on the same node."""
        return self._node

    def open_channel(self, backend: str, timeout_s: float) -> tuple[int, bytes]:
        """One round trip, as all that follow."""
        number, token = self._relay.ask(self._request("open_channel", backend=backend), timeout_s)
        return number, bytes_of(token) or b""

    def put(self, number: int, key: str, value: bytes, timeout_s: float) -> None:
        """Publishes a coordinate."""
        self._relay.ask(self._request("put", number=number, key=key, value=text_of(value)), timeout_s)

    def look(self, number: int, key: str, timeout_s: float) -> bytes | None:
        """A coordinate, if it is there."""
        return bytes_of(self._relay.ask(self._request("look", number=number, key=key), timeout_s))

    def tell_of(self, client_id: str) -> None:
        """Says so; the relay ends after the last handle that it was told of."""
        self._relay.use(client_id)
        with contextlib.suppress(ReplayError):
            self._relay.tell(self._request("tell_of", client=client_id, process=os.getpid()), FAREWELL_S)

    def tell_no_more_of(self, client_id: str) -> None:
        """Says so, and lets the relay end."""
        if self._relay.runs:  # none is started to say goodbye
            with contextlib.suppress(ReplayError):
                self._relay.ask(self._request("tell_no_more_of", client=client_id), FAREWELL_S)
        self._relay.leave(client_id)

    def _request(self, verb: str, **arguments: Any) -> dict[str, Any]:
        return {"verb": verb, "service": self._service, **arguments}


RELAYS: dict[str, Relay] = {}
"""By the Ray they join: one is enough for all handles of a process."""


def relay_to(address: str) -> Relay:
    """This process's relay to the Ray at `address`."""
    return RELAYS.setdefault(address, Relay(address))


def _forked() -> None:
    for relay in RELAYS.values():
        relay.leave_behind()
    RELAYS.clear()


os.register_at_fork(after_in_child=_forked)
