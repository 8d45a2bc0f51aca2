"""The bound on requests in flight."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from replay_service.errors import ClosedError, ReplayTimeoutError, ServiceUnavailableError
from replay_service.wire.channel import InFlight
from replay_service.wire.message import Message
from replay_service.wire.verbs import Verb


class Request:
    """A request that the test answers."""

    def __init__(self) -> None:
        self.answered = threading.Event()
        self.error: Exception | None = None
        self.settled = False

    def result(self, timeout_s: float) -> Message:
        if not self.answered.wait(timeout_s):
            raise ReplayTimeoutError("timeout")
        self.settled = True
        if self.error is not None:
            raise self.error
        return Message(Verb.LENGTH)

    def done(self) -> bool:
        return self.answered.is_set()


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_is_positive(limit: int) -> None:
    with pytest.raises(ValueError, match="limit"):
        InFlight(limit)


def filled(limit: int) -> tuple[InFlight, list[Request]]:
    flight = InFlight(limit)
    requests = [Request() for _ in range(limit)]
    for request in requests:
        flight.admit(1.0)
        flight.add(request)
    return flight, requests


def test_a_full_channel_waits_for_its_oldest_request(wait_until: Callable[..., None]) -> None:
    flight, requests = filled(3)
    assert len(flight) == 3
    admitted = threading.Event()
    threading.Thread(target=lambda: (flight.admit(30.0), admitted.set()), daemon=True).start()
    requests[1].answered.set()  # not the oldest: replies come in order
    assert not admitted.is_set()
    requests[0].answered.set()
    wait_until(admitted.is_set)
    assert requests[0].settled


def test_what_was_received_makes_room() -> None:
    flight, requests = filled(2)
    requests[0].answered.set()
    requests[0].result(1.0)
    flight.admit(0.001)
    assert len(flight) == 1


def test_no_place_in_time_is_an_error_that_names_the_limit() -> None:
    flight, _ = filled(2)
    with pytest.raises(ReplayTimeoutError, match=r"in flight \(2\)"):
        flight.admit(0.001)


@pytest.mark.parametrize("error", [ServiceUnavailableError("dead"), ValueError("bad")])
def test_a_request_that_failed_makes_room_and_keeps_its_error_for_who_asks(error: Exception) -> None:
    flight, requests = filled(1)
    requests[0].error = error
    requests[0].answered.set()
    flight.admit(1.0)
    with pytest.raises(type(error)):
        requests[0].result(1.0)


def test_a_closed_channel_says_so() -> None:
    flight, requests = filled(1)
    requests[0].error = ClosedError("closed")
    requests[0].answered.set()
    with pytest.raises(ClosedError):
        flight.admit(1.0)
