"""Samples that are asked for ahead: the next batch travels while this one trains."""

from __future__ import annotations

import concurrent.futures
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from replay_service.errors import ReplayError, ReplayTimeoutError

__all__ = ["Prefetch", "PrefetchThreads"]

DEEPEST = 1024
"""Results that may be under way: all of them are asked for before the first is given."""

Value = TypeVar("Value")
Given = TypeVar("Given", covariant=True)


class Awaited(Protocol[Given]):
    """A result that can be waited for."""

    def result(self, timeout: float | None = None) -> Given:
        """The result; waits up to `timeout` seconds."""


class Started(Generic[Value]):
    """A result that a thread waits for, and works on."""

    def __init__(self, running: concurrent.futures.Future[Value]) -> None:
        self._running = running

    def result(self, timeout: float | None = None) -> Value:
        """The result; waits up to `timeout` seconds.

        Raises:
            ReplayTimeoutError: it was not there in time.
        """
        try:
            return self._running.result(timeout)
        except (TimeoutError, concurrent.futures.TimeoutError) as error:
            if self._running.done():  # the call's own words
                raise
            raise ReplayTimeoutError(
                f"timeout ({timeout} s) must cover the call and the transforms of its result"
            ) from error


class PrefetchThreads:
    """Threads that wait for results and work on them while others are under way; none are started before they are wanted.

    Args:
        depth: how many.
        are_wanted: whether there is work to do on results.
    """

    def __init__(self, depth: int, are_wanted: Callable[[], bool]) -> None:
        self._depth = depth
        self._are_wanted = are_wanted
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None

    def started(self, future: Awaited[Value]) -> Awaited[Value]:
        """The result of `future`, which a thread waits for from now on if threads are wanted."""
        if not self._are_wanted():
            return future
        if self._pool is None:
            self._pool = concurrent.futures.ThreadPoolExecutor(self._depth, "replay-prefetch")
        return Started(self._pool.submit(future.result))


class Prefetch(Generic[Value], Iterator[Value]):
    """Results without end, of which `depth` are under way; the first are asked for by the first `next`.

    An error ends nothing: what was under way is dropped, and the next `next` asks anew.

    Args:
        submit: asks for one result.
        depth: how many are under way.
        timeout_s: how long one is waited for, in seconds.

    Raises:
        ValueError: `depth` is not a positive integer of at most 1024.
    """

    def __init__(self, submit: Callable[[], Awaited[Value]], depth: int, timeout_s: float) -> None:
        if isinstance(depth, bool) or not isinstance(depth, int) or not 1 <= depth <= DEEPEST:
            raise ValueError(f"depth ({depth!r}) must be a positive integer of at most {DEEPEST}")
        self._submit = submit
        self._depth = depth
        self._timeout_s = timeout_s
        self._ahead: deque[Awaited[Value]] = deque()
        self._closed = False

    def __iter__(self) -> Prefetch[Value]:
        return self

    def __next__(self) -> Value:
        """The oldest result; raises what asking for it, or for the next one, raised."""
        if self._closed:
            raise StopIteration
        try:
            while len(self._ahead) < self._depth:
                self._ahead.append(self._submit())
            value = self._ahead[0].result(self._timeout_s)
            self._ahead.popleft()
            self._ahead.append(self._submit())
        except BaseException:
            self._ahead.clear()
            raise
        return value

    def close(self) -> None:
        """Ends the iteration and waits (no longer than for one result) until nothing is under way. Idempotent."""
        self._closed = True
        deadline = time.monotonic() + self._timeout_s
        while self._ahead:
            with contextlib.suppress(ReplayError, ValueError, TypeError, RuntimeError):  # nobody wants it any more
                self._ahead.popleft().result(max(deadline - time.monotonic(), 0.001))

    def __enter__(self) -> Prefetch[Value]:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
