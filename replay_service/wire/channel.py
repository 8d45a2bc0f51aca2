"""The seam between a handle and whatever carries its messages: one verb, `call`, and its asynchronous form, `submit`."""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol, TypeVar

from replay_service.errors import ClosedError, ReplayTimeoutError
from replay_service.wire.message import Message

__all__ = ["Channel", "InFlight", "Pending"]


class Pending(Protocol):
    """A request on its way."""

    def result(self, timeout_s: float) -> Message:
        """The reply, which may be an error reply.

        Raises:
            ReplayTimeoutError: none within `timeout_s`; asking again is allowed.
            ServiceUnavailableError: the service is dead or unreachable.
        """

    def done(self) -> bool:
        """Whether `result` would return at once."""

    @property
    def settled(self) -> bool:
        """Whether the reply was received already, by `result` or on its own."""


class Channel(Protocol):
    """Carries messages to one service and brings the replies, in the order of the requests."""

    @property
    def kind(self) -> str:
        """`"inproc"`, `"ray"` or `"distributed"`."""

    @property
    def carries_objects(self) -> bool:
        """Whether `Message.objects` travels."""

    def call(self, request: Message, timeout_s: float) -> Message:
        """Sends a request and waits for its reply; raises what `Pending.result` raises, and the error a reply reports."""

    def submit(self, request: Message, timeout_s: float) -> Pending:
        """Sends a request; waits up to `timeout_s` for a place among those in flight."""

    def close(self) -> None:
        """Frees what the channel holds; calls afterwards raise `ClosedError`. Idempotent."""


Item = TypeVar("Item", bound=Pending)


class InFlight:
    """Bounds how many requests of one channel are unanswered: back-pressure is a named number."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"limit ({limit}) must be positive")
        self.limit = limit
        self._waiting: deque[Pending] = deque()
        self._lock = threading.Lock()

    def admit(self, timeout_s: float) -> None:
        """Returns when there is a place; waits for the oldest request if there is none.

        Raises:
            ReplayTimeoutError: the oldest request was not answered within `timeout_s`.
        """
        while True:
            with self._lock:
                while self._waiting and self._waiting[0].settled:
                    self._waiting.popleft()
                if len(self._waiting) < self.limit:
                    return
                oldest = self._waiting[0]
            try:
                oldest.result(timeout_s)
            except ReplayTimeoutError:
                raise ReplayTimeoutError(
                    f"in flight ({self.limit}) must fall below the limit within {timeout_s} s: the service is too slow"
                ) from None
            except ClosedError:
                raise
            except Exception:
                pass
            with self._lock:
                if self._waiting and self._waiting[0] is oldest:
                    self._waiting.popleft()

    def add(self, pending: Pending) -> None:
        """Counts `pending` until it is done."""
        with self._lock:
            self._waiting.append(pending)

    def __len__(self) -> int:
        with self._lock:
            return sum(not pending.settled for pending in self._waiting)
