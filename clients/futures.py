"""Calls on their way: a result that can be waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from replay_service.arguments import positive_seconds
from replay_service.wire.channel import Pending
from replay_service.wire.conversation import checked
from replay_service.wire.message import Message

__all__ = ["Future"]

Value = TypeVar("Value")


class Future(Generic[Value]):
    """The result of a `submit_…` call."""

    def __init__(self, pending: Pending, decode: Callable[[Message], Value], timeout_s: float) -> None:
        self._pending = pending
        self._decode = decode
        self._timeout_s = timeout_s
        self._value: Any = None
        self._decoded = False

    def result(self, timeout: float | None = None) -> Value:
        """The result; waits up to `timeout` seconds (None: the service's default).

        Raises:
            ValueError: `timeout` is not a positive number.
            ReplayTimeoutError: not answered in time; asking again is allowed.
            ServiceUnavailableError: the service is dead or unreachable.
        """
        timeout_s = positive_seconds(timeout, self._timeout_s)
        if not self._decoded:
            reply = checked(self._pending.result(timeout_s))
            self._value = self._decode(reply)
            self._decoded = True
        return self._value  # type: ignore[no-any-return]

    def done(self) -> bool:
        """Whether `result` would return at once."""
        return self._decoded or self._pending.done()
