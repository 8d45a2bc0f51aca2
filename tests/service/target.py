"""An actor that holds nothing and imports nothing, so that it starts quickly."""

from __future__ import annotations

__all__ = ["Target"]


class Target:
    def drained(self) -> bool:
        return True
