"""Counts that users pass: capacities, batch sizes, numbers of dimensions."""

from __future__ import annotations

from replay_service.arguments import positive_integer

__all__ = ["positive_integer"]
