"""Buffers that know their episodes, and the batches that they take and give."""

from __future__ import annotations

from replay_service.episodic.batch import Batch

__all__ = ["Batch"]
