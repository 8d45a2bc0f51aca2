"""Ctrl-C as a request that the running job sees between two steps, instead of an exception in the middle of one."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interruption"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """While entered, the first SIGINT or SIGTERM sets `requested`; a second one raises KeyboardInterrupt.

    With `at_once` the first one raises it, too. It may come up inside a destructor, where Python drops it; `requested` stays.
    Only the main thread can have signals; elsewhere nothing is installed and `requested` stays False.
    """

    def __init__(self, *, at_once: bool = False) -> None:
        self.requested = False
        self._at_once = at_once
        self._before: dict[signal.Signals, Any] = {}

    def take(self) -> None:
        """Install the handlers, again where a library has put its own in their place."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            replaced = signal.signal(number, self._note)
            self._before.setdefault(number, replaced)

    def __enter__(self) -> Interruption:
        self.take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        again, self.requested = self.requested, True
        if again or self._at_once:
            raise KeyboardInterrupt
