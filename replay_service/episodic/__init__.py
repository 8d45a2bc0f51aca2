"""Buffers that know their episodes, and the batches that they take and give."""

from __future__ import annotations

from replay_service.episodic.batch import Batch
from replay_service.episodic.cached import CachedReplayBuffer
from replay_service.episodic.her import HERReplayBuffer, HERVectorReplayBuffer
from replay_service.episodic.prioritized import PrioritizedReplayBuffer, PrioritizedVectorReplayBuffer
from replay_service.episodic.replay_buffer import ReplayBuffer
from replay_service.episodic.segment_tree import SegmentTree
from replay_service.episodic.vector import VectorReplayBuffer

__all__ = [
    "Batch",
    "CachedReplayBuffer",
    "HERReplayBuffer",
    "HERVectorReplayBuffer",
    "PrioritizedReplayBuffer",
    "PrioritizedVectorReplayBuffer",
    "ReplayBuffer",
    "SegmentTree",
    "VectorReplayBuffer",
]
