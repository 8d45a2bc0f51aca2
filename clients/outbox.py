"""Rows on their way to a buffer, a bounded number of pushes at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["Outbox"]


class Outbox:
    """Pushes in flight; the oldest is waited for first.

    write: stores rows and returns the buffer's answer. submit: does so later, returning what has `result()`; None where the
    buffer can't. landed: called with each answer and the note that was sent with its rows, in the order of sending.
    """

    def __init__(
        self,
        write: Callable[..., Any] | None,
        submit: Callable[..., Any] | None,
        most_in_flight: int,
        landed: Callable[[Any, Any], None],
    ) -> None:
        self._write = write
        self._submit = submit
        self._most_in_flight = most_in_flight
        self._landed = landed
        self._pending: deque[tuple[Any, Any]] = deque()

    def send(self, note: Any, rows: Any, **options: Any) -> None:
        """Hand `rows` to the buffer; waits only while too many are in flight. Raises what an earlier or this push raised."""
        if self._submit is None:
            assert self._write is not None
            self._landed(self._write(rows, **options), note)
            return
        while len(self._pending) >= self._most_in_flight:
            self._land_oldest()
        self._pending.append((self._submit(rows, **options), note))

    def drain(self) -> None:
        """Wait until the buffer has everything."""
        while self._pending:
            self._land_oldest()

    def _land_oldest(self) -> None:
        pending, note = self._pending.popleft()
        self._landed(pending.result(), note)
