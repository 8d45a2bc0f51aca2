"""The channel over Ray, to an actor of its own process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import ray
import torch

from clients.decoding import decode_records
from clients.requests import extend_request, sample_request
from replay_service.errors import ReplayTimeoutError, ServiceUnavailableError
from replay_service.wire.message import Message
from replay_service.wire.ray_objects import RayChannel, readable, sendable
from replay_service.wire.verbs import Verb
from tests.contracts.channel import TIMEOUT_S, ChannelContract, Recipe, columns, objects
from tests.rows import stamped_rows
from tests.wire.serving import House


@pytest.fixture
def actor(guest_house: House) -> Any:
    return guest_house.actor


class TestRayChannel(ChannelContract):
    @pytest.fixture(autouse=True)
    def _actor(self, actor: Any) -> None:
        self.actor = actor

    @contextmanager
    def connected(self, recipe: Recipe) -> Iterator[RayChannel]:
        ray.get(self.actor.become.remote(recipe), timeout=TIMEOUT_S)
        yield RayChannel(self.actor, "the service")


@pytest.fixture
def channel(actor: Any) -> RayChannel:
    ray.get(actor.become.remote(columns), timeout=TIMEOUT_S)
    return RayChannel(actor, "the service", in_flight=3)


@contextmanager
def stopped(actor: Any) -> Iterator[None]:
    """The actor's process does nothing meanwhile."""
    pid = ray.get(actor.pid.remote(), timeout=TIMEOUT_S)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_call_past_its_timeout_says_so_and_the_next_works(actor: Any, channel: RayChannel) -> None:
    with stopped(actor), pytest.raises(ReplayTimeoutError, match=r"timeout \(0.05 s\).*the service"):
        channel.call(Message(Verb.LENGTH), 0.05)
    assert channel.call(Message(Verb.LENGTH), TIMEOUT_S).argument(0) == 0


def test_a_reply_that_is_late_can_be_asked_for_again(actor: Any, channel: RayChannel) -> None:
    with stopped(actor):
        pending = channel.submit(Message(Verb.LENGTH), TIMEOUT_S)
        with pytest.raises(ReplayTimeoutError):
            pending.result(0.01)
        assert not pending.done()
        assert not pending.settled
    assert pending.result(TIMEOUT_S).argument(0) == 0
    assert pending.done()


def test_who_asks_with_a_short_timeout_does_not_wait_for_who_asks_with_a_long_one(
    actor: Any, channel: RayChannel
) -> None:
    with stopped(actor):
        pending = channel.submit(Message(Verb.LENGTH), TIMEOUT_S)
        patient = threading.Thread(target=pending.result, args=(TIMEOUT_S,))
        patient.start()
        with pytest.raises(ReplayTimeoutError):
            pending.result(0.01)
        with pytest.raises(ReplayTimeoutError):
            pending.result(0.01)
    patient.join(TIMEOUT_S)
    assert pending.settled


def test_no_more_requests_are_in_flight_than_allowed(actor: Any, channel: RayChannel) -> None:
    with stopped(actor):
        waiting = [channel.submit(extend_request(stamped_rows(2), None), TIMEOUT_S) for _ in range(3)]
        with pytest.raises(ReplayTimeoutError, match=r"in flight \(3\)"):
            channel.submit(extend_request(stamped_rows(2), None), 0.05)
    slots = [pending.result(TIMEOUT_S).tensor("index").tolist() for pending in waiting]
    assert slots == [[0, 1], [2, 3], [4, 5]]
    assert channel.call(Message(Verb.WRITE_COUNT), TIMEOUT_S).argument(0) == 6


def test_a_dead_service_fails_what_is_in_flight_and_what_comes_after(actor: Any) -> None:
    ray.get(actor.become.remote(columns), timeout=TIMEOUT_S)
    channel = RayChannel(actor, "the service")
    pid = ray.get(actor.pid.remote(), timeout=TIMEOUT_S)
    os.kill(pid, signal.SIGSTOP)
    pending = channel.submit(Message(Verb.LENGTH), TIMEOUT_S)
    os.kill(pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(ServiceUnavailableError, match="the service must be alive"):
            pending.result(TIMEOUT_S)
    assert pending.done()
    assert pending.settled
    with pytest.raises(ServiceUnavailableError, match="the service must be alive"):
        channel.call(Message(Verb.LENGTH), TIMEOUT_S)


@pytest.mark.parametrize("rows", [8, 16])  # one thread copies 3 MB, two copy 6 MB
def test_large_messages_are_writable_and_reuse_memory(channel: RayChannel, rows: int) -> None:
    """Such messages go through Ray's object store, whose memory is read-only."""
    wide = torch.arange(20 * 100_000, dtype=torch.float32).view(20, 100_000)
    data = stamped_rows(20).set("wide", wide)
    channel.call(extend_request(data, None), TIMEOUT_S)
    places = set()
    for _ in range(10):
        reply = channel.call(sample_request(rows, False), TIMEOUT_S)
        found = reply.tensor("data", "wide")
        assert torch.equal(found, wide[reply.tensor("info", "index")])
        found.zero_()
        places.add(found.data_ptr())
        del reply, found
    assert len(places) <= 3


def test_readable_is_the_same_memory_without_the_mark() -> None:
    array = np.arange(10, dtype=np.uint8)
    assert readable(array) is array
    array.flags.writeable = False
    found = readable(array)
    assert found.flags.writeable
    assert found.ctypes.data == array.ctypes.data
    assert found.base is not None  # keeps the original alive


def test_arrays_among_objects_are_writable(actor: Any) -> None:
    ray.get(actor.become.remote(objects), timeout=TIMEOUT_S)
    channel = RayChannel(actor, "the service")
    records = [np.arange(3), {"a": np.zeros(10**5)}, (np.ones(2), ["text"])]
    channel.call(extend_request(records, None), TIMEOUT_S)
    found = decode_records(channel.call(Message(Verb.READ_ALL), TIMEOUT_S))
    found[0][0] = 7
    found[1]["a"][:] = 1.0
    found[2][0][:] = 2.0
    again = decode_records(channel.call(Message(Verb.READ_ALL), TIMEOUT_S))
    assert [again[0].tolist(), again[1]["a"].sum(), again[2][0].tolist()] == [[0, 1, 2], 0.0, [1.0, 1.0]]
    assert again[2][1] == ["text"]


def test_small_frames_travel_as_bytes() -> None:
    small, large = np.arange(200, dtype=np.uint8), np.zeros(10**6, np.uint8)
    assert sendable(small) == small.tobytes()
    assert sendable(large) is large
    found = readable(small.tobytes())
    assert found.flags.writeable
    assert (found == small).all()
