"""The life of a service as a local buffer leads it: it runs as soon as it exists, and it is its own handle."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, TypeVar

from replay_service.buffer.backends import DIRECT

__all__ = ["LocalService", "finished"]

Result = TypeVar("Result")
Self = TypeVar("Self", bound="LocalService")


class LocalService:
    """What code written for a hosted buffer may ask of a local one, too; nothing here has an effect."""

    @property
    def initialized(self) -> bool:
        """True: a local buffer needs no start."""
        return True

    @property
    def service_backend(self) -> str:
        """`"direct"`."""
        return DIRECT

    def start(self: Self) -> Self:
        """Itself: a local buffer runs as soon as it exists."""
        return self

    def is_alive(self) -> bool:
        """True."""
        return True

    def client(self: Self) -> Self:
        """Itself: a local buffer is its own handle."""
        return self

    def close(self) -> None:
        """Without an effect: there is no channel to free."""

    def shutdown(self, timeout: float | None = None) -> None:
        """Without an effect: nothing runs."""

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """As `shutdown`: without an effect."""
        self.shutdown()


def finished(call: Any, *arguments: Any, **settings: Any) -> Future[Any]:
    """A future that is done: it holds what `call` returned or raised.

    Only errors are kept for `result()`; what ends the program (`KeyboardInterrupt`) passes through.
    """
    future: Future[Any] = Future()
    try:
        future.set_result(call(*arguments, **settings))
    except Exception as error:
        future.set_exception(error)
    return future
