"""The mean of the last values of something that jumps about, such as a loss."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

__all__ = ["MovingMean"]


class MovingMean:
    """Mean of the last `window` values; infinities and what is no number are left out."""

    def __init__(self, window: int = 100) -> None:
        self._values: deque[float] = deque(maxlen=window)

    def add(self, values: Iterable[float]) -> None:
        """Take newer values in."""
        self._values.extend(value for value in values if value - value == 0.0)

    @property
    def mean(self) -> float:
        """0 before the first value."""
        return sum(self._values) / len(self._values) if self._values else 0.0
