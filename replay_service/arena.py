"""Recycled byte buffers: a batch that was dropped lends its memory to the next one.

Fresh memory costs a page fault for every 4 KiB, which for a 14 MB batch is several times the copy itself. An `Arena` keeps the last few
buffers it handed out and gives one again as soon as nobody holds it any more. "Nobody" is exact, not guessed: a NumPy view, and a
tensor made by `torch.from_numpy`, hold a reference on the buffer under them, so a buffer whose reference count is back at the arena's
own cannot be seen from anywhere else. Callers therefore own what they get, for as long as they keep it.
"""

from __future__ import annotations

import sys
import threading

import numpy as np
from numpy.typing import NDArray

__all__ = ["ALIGNMENT", "Arena", "aligned"]

ALIGNMENT = 64
"""Bytes to which every leaf in a payload is aligned: one cache line, and the widest vector load."""

SMALLEST_RECYCLED_BYTES = 128 * 1024
"""Below this the allocator already reuses memory without page faults."""

REFERENCES_WHEN_FREE = 2
"""The pool's list and the argument of `getrefcount`."""


def aligned(size_bytes: int) -> int:
    """`size_bytes` rounded up to a multiple of `ALIGNMENT`."""
    return (size_bytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


class Arena:
    """Hands out aligned, uninitialised `uint8` buffers and reuses those that were dropped.

    Args:
        max_buffers: how many buffers are remembered for reuse.
        max_bytes: how many bytes are remembered in all; what does not fit is handed out once and freed as usual.
    """

    def __init__(self, max_buffers: int = 6, max_bytes: int = 512 * 1024 * 1024) -> None:
        self._max_buffers = max_buffers
        self._max_bytes = max_bytes
        self._pool: list[NDArray[np.uint8]] = []
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Arena], tuple[int, int]]:
        # A copy, in this process or another, starts with memory of its own.
        return Arena, (self._max_buffers, self._max_bytes)

    def take(self, size_bytes: int) -> NDArray[np.uint8]:
        """A writable buffer `[size_bytes]`, aligned to `ALIGNMENT`, that the caller owns while holding it or a view of it."""
        if size_bytes < SMALLEST_RECYCLED_BYTES:
            return _align(np.empty(size_bytes + ALIGNMENT, np.uint8), size_bytes)
        with self._lock:
            pool = self._pool
            for place in range(len(pool)):
                # `pool[place]` is passed without a local name, so that the count stays at REFERENCES_WHEN_FREE.
                if sys.getrefcount(pool[place]) == REFERENCES_WHEN_FREE and _fits(pool[place].size, size_bytes):
                    return _align(pool[place], size_bytes)
            fresh = np.empty(size_bytes + size_bytes // 8 + ALIGNMENT, np.uint8)
            self._remember(fresh)
            return _align(fresh, size_bytes)

    def retained_bytes(self) -> int:
        """Bytes of all remembered buffers, in use or free."""
        with self._lock:
            return sum(buffer.size for buffer in self._pool)

    def _remember(self, fresh: NDArray[np.uint8]) -> None:
        pool = self._pool
        if fresh.size > self._max_bytes:
            return
        # The oldest free buffers make room: sizes that are no longer asked for fade out.
        while len(pool) >= self._max_buffers or sum(buffer.size for buffer in pool) + fresh.size > self._max_bytes:
            free = next((i for i in range(len(pool)) if sys.getrefcount(pool[i]) == REFERENCES_WHEN_FREE), None)
            if free is None:
                return
            del pool[free]
        pool.append(fresh)


def _fits(buffer_bytes: int, size_bytes: int) -> bool:
    # A far larger buffer would pin memory for a small batch.
    return size_bytes + ALIGNMENT <= buffer_bytes <= 4 * size_bytes + ALIGNMENT


def _align(buffer: NDArray[np.uint8], size_bytes: int) -> NDArray[np.uint8]:
    start = -buffer.ctypes.data % ALIGNMENT
    return buffer[start : start + size_bytes]
