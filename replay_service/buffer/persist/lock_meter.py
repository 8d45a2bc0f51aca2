"""How long a save keeps others waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

__all__ = ["LockMeter"]


class LockMeter:
    """Takes a buffer's lock for a save, and measures how long it was held; waiting for it does not count.

    Args:
        lock: the lock.

    Attributes:
        held_s: all together, in seconds.
        longest_s: the longest time at a stretch.
    """

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self._lock = lock
        self.held_s = 0.0
        self.longest_s = 0.0

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Holds the lock."""
        with self._lock:
            begun = time.perf_counter()
            try:
                yield
            finally:
                held = time.perf_counter() - begun
                self.held_s += held
                self.longest_s = max(self.longest_s, held)
