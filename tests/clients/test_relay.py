"""The process that joins Ray in a forked one's place, seen from the one that started it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Iterator

import psutil
import pytest

from clients.relay import Relay, relay_to
from replay_service.errors import ReplayTimeoutError, ServiceUnavailableError

START_S = 120.0


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{free.getsockname()[1]}"


def relays() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.ZombieProcess, psutil.NoSuchProcess):  # of another test: it ended meanwhile
            if "clients.relay_process" in child.cmdline():
                found.append(child)
    return found


def test_it_takes_no_longer_than_allowed_and_goes_on_and_leaves_nothing(nowhere: str) -> None:
    relay = Relay(nowhere)
    relay.use("handle")
    request = {"verb": "describe", "service": ["name", "namespace"]}
    with pytest.raises(ReplayTimeoutError, match="relay"):
        relay.ask(request, 0.01)
    (process,) = relays()
    # Two requests are on their way by now, and both are told the same; each asker gets the reply to its own.
    with pytest.raises(ServiceUnavailableError, match=f"Ray .{nowhere}. must be reachable"):
        relay.ask(request, START_S)
    assert relays() == [process]
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(ReplayTimeoutError):
        relay.ask(request, 0.01)
    relay.leave("handle")  # it cannot hear that its input has ended
    assert not relays()
    assert not relay.runs


def test_one_is_enough_for_a_process_and_a_fork_begins_without(nowhere: str) -> None:
    relay = relay_to(nowhere)
    assert relay_to(nowhere) is relay
    child = os.fork()
    if child == 0:
        os._exit(0 if relay_to(nowhere) is not relay else 1)
    assert os.waitpid(child, 0)[1] == 0
