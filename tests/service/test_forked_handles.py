"""Handles in forked processes, which have lost their Ray: real forks, with conversations of their own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import psutil
import pytest

from clients import ReplayClient
from tests.rows import assert_rows_are_whole, stamped_rows
from tests.service.test_tensor_service import RECIPE
from tests.wire.serving import House

FORK = multiprocessing.get_context("fork")
START_S = 120.0
"""How long a relay may take to start and to join Ray on a busy machine."""

ROUNDS = 15

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def client(guest_house: House) -> Iterator[ReplayClient]:
    owner = guest_house.host(RECIPE)
    with ReplayClient(replace(owner.address, timeout_s=START_S)) as handle:
        yield handle


class Fork:
    """A forked process that does what it is told: `do(name, …)` calls a function of this file there, with its handles."""

    def __init__(self, client: ReplayClient, others: tuple[Any, ...] = ()) -> None:
        self._here, there = FORK.Pipe()
        self.process = FORK.Process(target=_obey, args=(there, client, others), daemon=True)
        self.process.start()
        there.close()

    def do(self, name: str) -> Any:
        """The result, or the error as `class: text`."""
        self._here.send(name)
        assert self._here.poll(START_S), f"{name} has not been done within {START_S} s"
        return self._here.recv()

    def relays(self) -> list[psutil.Process]:
        """The processes it has started."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self) -> None:
        """Kills it."""
        self.process.kill()
        self.process.join(START_S)


def _obey(orders: Connection, client: ReplayClient, others: tuple[Any, ...]) -> None:
    while True:
        try:
            orders.send(ORDERS[orders.recv()](client, *others))
        except EOFError:
            return
        except Exception as error:
            orders.send(f"{type(error).__name__}: {error}")


def _round(client: ReplayClient, *_: Any) -> str:
    client.extend(stamped_rows(3, stamp=7))
    assert_rows_are_whole(client.sample(16))
    return "done"


def _another_handle(client: ReplayClient, *_: Any) -> str:
    with ReplayClient(client.address) as another:
        _round(another)
    return "done"


def _close(client: ReplayClient, *_: Any) -> str:
    client.close()
    return "done"


ORDERS: dict[str, Any] = {
    "round": _round,
    "another handle": _another_handle,
    "close": _close,
    "extend words": lambda client, *_: client.extend(["a word"]),
    "sample over ray": lambda client, *_: ReplayClient(replace(client.address, transport="ray")).sample(),
    "parent's reply": lambda client, future: future.result(),
}


def _is_gone(process: psutil.Process) -> bool:
    # Whoever adopts orphans here may not wait for them; one that has ended is gone all the same.
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_parent_and_child_go_on_side_by_side_and_nothing_is_left(client: ReplayClient, wait_until: Any) -> None:
    client.extend(stamped_rows(8))
    assert_rows_are_whole(client.sample(16))
    future = client.submit_sample()
    fork = Fork(client, (future,))
    try:
        assert "'spawn'" in fork.do("sample over ray")
        assert fork.relays() == []  # only where it is of use
        assert fork.do("parent's reply").startswith("ClosedError")
        for _ in range(ROUNDS):
            assert fork.do("round") == "done"
            _round(client)
        assert future.result().shape == (8,)
        assert client.stats()["service"]["channels"] >= 2
        (relay,) = fork.relays()
        assert fork.do("another handle") == "done"
        assert fork.relays() == [relay]
        told = fork.do("extend words")
        assert told.startswith("ServiceUnavailableError")
        assert "'spawn'" in told
        assert fork.do("round") == "done"
        rows = 8 + 3 * (2 * ROUNDS + 2)
        assert client.write_count == rows
        assert len(client) == rows
        assert_rows_are_whole(client.read_all_in_order())
        channels = client.stats()["service"]["channels"]
        assert fork.do("close") == "done"
        wait_until(lambda: client.stats()["service"]["channels"] == channels - 1)
        assert fork.relays() == []
    finally:
        fork.end()
    assert _is_gone(relay)
    _round(client)


def test_a_killed_child_leaves_nothing(client: ReplayClient, wait_until: Any) -> None:
    fork = Fork(client)
    try:
        assert fork.do("round") == "done"
        (relay,) = fork.relays()
        channels = client.stats()["service"]["channels"]
    finally:
        fork.end()
    wait_until(lambda: _is_gone(relay))
    wait_until(lambda: client.stats()["service"]["channels"] == channels - 1)
    _round(client)
    assert client.write_count == 6
