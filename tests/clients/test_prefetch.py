"""Results that are asked for ahead."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from clients.prefetch import Prefetch, PrefetchThreads
from replay_service.errors import ClosedError, EmptyBufferError, ReplayTimeoutError


class Answer:
    """A future that is answered when it is asked."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self.asked = False

    def result(self, timeout: float | None = None) -> Any:
        assert timeout is not None
        assert timeout > 0
        self.asked = True
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


class Source:
    """Hands out answers in turn."""

    def __init__(self, *values: Any) -> None:
        self._values = iter(values or range(1000))
        self.given: list[Answer] = []

    def __call__(self) -> Any:
        value = next(self._values)
        if isinstance(value, ClosedError):
            raise value
        self.given.append(Answer(value))
        return self.given[-1]


def test_results_come_in_order_and_the_next_are_asked_for_before_one_is_returned() -> None:
    source = Source()
    batches = Prefetch(source, 3, 5.0)
    assert not source.given
    for number in range(10):
        assert next(batches) == number
        assert len(source.given) == number + 4
        assert sum(not answer.asked for answer in source.given) == 3


def test_closing_waits_for_what_is_under_way() -> None:
    source = Source()
    with Prefetch(source, 4, 5.0) as batches:
        next(batches)
    assert all(answer.asked for answer in source.given)
    batches.close()
    assert list(batches) == []


def test_closing_survives_errors() -> None:
    source = Source(0, EmptyBufferError("x"), ReplayTimeoutError("y"), ValueError("z"), 1)
    batches = Prefetch(source, 3, 5.0)
    next(batches)
    batches.close()
    assert all(answer.asked for answer in source.given)


def test_after_an_error_it_asks_anew() -> None:
    source = Source(EmptyBufferError("x"), EmptyBufferError("x"), 1, 2, 3, 4)
    batches = Prefetch(source, 2, 5.0)
    with pytest.raises(EmptyBufferError):
        next(batches)
    assert [next(batches), next(batches)] == [1, 2]


def test_an_error_in_asking_is_raised_and_closing_is_still_possible() -> None:
    batches = Prefetch(Source(0, 1, ClosedError("closed")), 2, 5.0)
    with pytest.raises(ClosedError):
        next(batches)
    batches.close()


@pytest.mark.parametrize("depth", [0, -1, True, 1.5, 1025, 10**30])
def test_depth_is_a_positive_integer(depth: Any) -> None:
    with pytest.raises(ValueError, match="depth"):
        Prefetch(Source(), depth, 1.0)


def test_threads_work_on_results_as_soon_as_they_are_wanted() -> None:
    wanted, names = [False], []

    class Future:
        def result(self, timeout: float | None = None) -> str:
            names.append(threading.current_thread().name)
            return "value"

    threads = PrefetchThreads(2, lambda: wanted[0])
    batches = Prefetch(lambda: threads.started(Future()), 2, 5.0)
    assert next(batches) == "value"
    assert names == [threading.current_thread().name]
    wanted[0] = True
    assert [next(batches) for _ in range(4)] == ["value"] * 4
    batches.close()
    own = [name for name in names if not name.startswith("replay-prefetch")]
    assert len(own) == 3  # the first, and those that had been asked for by then


def test_a_result_that_takes_too_long_is_ours_to_time_out() -> None:
    release = threading.Event()

    class Slow:
        def result(self, timeout: float | None = None) -> None:
            release.wait(10)
            raise ReplayTimeoutError("the call's own words")

    started = PrefetchThreads(1, lambda: True).started(Slow())
    with pytest.raises(ReplayTimeoutError, match=r"timeout \(0\.01 s\)"):
        started.result(0.01)
    release.set()
    with pytest.raises(ReplayTimeoutError, match="own words"):
        started.result(5.0)
