"""Replay memory for reinforcement learning: the same calls in one process and across many machines."""

from __future__ import annotations

__all__: list[str] = []
