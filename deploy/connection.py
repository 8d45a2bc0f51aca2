"""Joining a Ray for the length of one command, without waiting for one that is not there."""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from deploy.errors import DeployError
from replay_service.errors import ServiceUnavailableError

__all__ = ["accepts", "joined", "own_ip", "prefer_token", "probe", "require_ray", "stuck_in_ray"]

JOIN_TIMEOUT_S = 10.0
PROBE_TIMEOUT_S = 3.0
INTERRUPTED_JOIN_S = 5.0

# Set once an attempt to join was given up: Ray cannot be told to stop trying, so the process must not wait for it.
_given_up = threading.Event()


def require_ray() -> None:
    """Raises:
    DeployError: Ray is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise DeployError("Ray (missing) must be installed to run services; got no module named 'ray': pip install ray")


def prefer_token() -> None:
    """Use this user's Ray token, if there is one, for whatever Ray is joined or started from here.

    Ray does so by itself only where it finds the address by itself. A Ray that asks for no token takes ours as well.
    Has to be called before Ray is imported; what the environment already says is kept.
    """
    named = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if "RAY_AUTH_MODE" not in os.environ and (named or (Path.home() / ".ray" / "auth_token").is_file()):
        os.environ["RAY_AUTH_MODE"] = "token"


def stuck_in_ray() -> bool:
    """Whether a thread of this process is still inside an attempt to join that was given up."""
    return _given_up.is_set()


@contextlib.contextmanager
def joined(address: str, timeout_s: float = JOIN_TIMEOUT_S) -> Iterator[str]:
    """Join the Ray at `address` (`"host:port"` or `"auto"`), yield its `host:port`, and leave it at the end.

    A Ray that this process has already joined is used as it is, and not left.

    Raises:
        DeployError: Ray is not installed, or this process is in another Ray.
        ServiceUnavailableError: nothing answers there within `timeout_s`, or what answers is no Ray.
    """
    require_ray()
    import ray

    if ray.is_initialized():
        current = str(ray.get_runtime_context().gcs_address)
        if address not in ("auto", current):
            raise DeployError(f"Ray address ({address!r}) must be that of the Ray this process is in; got {current!r}")
        yield current
        return
    deadline = time.monotonic() + timeout_s
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address
    if address != "auto":
        probe(address)
    with _quiet_stderr() as noise:
        outcome = _init(address, deadline)
        said = noise()
    if isinstance(outcome, BaseException):
        raise _unavailable(address, _reason(outcome, said)) from outcome
    if threading.current_thread() is threading.main_thread():
        # Ray has put a handler of its own in front of Python's, which ends the process by an abort.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    try:
        yield str(ray.get_runtime_context().gcs_address)
    finally:
        ray.shutdown()


def accepts(host: str, port: int, timeout_s: float = PROBE_TIMEOUT_S) -> bool:
    """Whether somebody listens at `host`, `port`."""
    try:
        socket.create_connection((host, port), timeout=timeout_s).close()
    except OSError:
        return False
    return True


def own_ip() -> str:
    """The address that Ray knows this machine by."""
    import ray.util

    return str(cast(Callable[[], str], ray.util.get_node_ip_address)())


def probe(address: str) -> None:
    """Raises ServiceUnavailableError if nobody listens at `"host:port"`."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not port.isdecimal():
        raise _unavailable(address, "an address that is not 'host:port'")
    # Ray takes a loopback address for this machine's own one.
    if accepts(host, int(port)) or (_is_loopback(host) and accepts(own_ip(), int(port))):
        return
    raise _unavailable(address, "nobody who listens there")


def _init(address: str, deadline: float) -> BaseException | None:
    """Run `ray.init` in a thread of its own: it may take over a minute to find out that nobody is there."""
    import ray

    result: list[BaseException | None] = []

    def init() -> None:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except BaseException as error:
            # Ray leaves by SystemExit where it cannot reach its head.
            result.append(error)
        else:
            result.append(None)

    thread = threading.Thread(target=init, name="join-ray", daemon=True)
    thread.start()
    try:
        thread.join(max(deadline - time.monotonic(), 1.0))
    except BaseException:
        # Ctrl-C: let it finish, so that what was joined can be left.
        thread.join(INTERRUPTED_JOIN_S)
        if result == [None]:
            ray.shutdown()
        raise
    finally:
        if thread.is_alive():
            _given_up.set()
    return result[0] if result else TimeoutError("no answer in time")


def _reason(error: BaseException, said: str) -> str:
    if "InvalidAuthToken" in said or "Unauthenticated" in said:
        return "a Ray that asks for another token: set RAY_AUTH_MODE=token and put its token into ~/.ray/auth_token"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = str(error).strip()
    return text.splitlines()[0] if text and not isinstance(error, SystemExit) else "no Ray that could be joined"


def _unavailable(address: str, got: str) -> ServiceUnavailableError:
    return ServiceUnavailableError(f"Ray address ({address!r}) must be that of a running Ray; got {got}")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[Any]:
    """Take what Ray's C++ side writes to file descriptor 2; yields a function that tells what was written."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as taken:
        saved = os.dup(2)
        os.dup2(taken.fileno(), 2)

        def written() -> str:
            taken.seek(0)
            return taken.read().decode(errors="replace")

        try:
            yield written
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
