"""Small buffers that make up ensembles; the rows of each tell whose they are."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict

from replay_service import LazyTensorStorage, ReplayBufferEnsemble, TensorDictReplayBuffer, TensorDictRoundRobinWriter
from tests.rows import stamped_rows

__all__ = ["BASE", "ensemble", "member", "routed_rows", "stamps_by_member"]

BASE = 1000
"""Buffer `i` holds stamps from `i * BASE` on."""


def member(place: int, rows: int, capacity: int = 10, **parts: Any) -> TensorDictReplayBuffer:
    """A buffer with generations that holds `rows` rows."""
    parts.setdefault("storage", LazyTensorStorage(capacity))
    buffer = TensorDictReplayBuffer(writer=TensorDictRoundRobinWriter(track_generations=True), **parts)
    buffer.set_rng(torch.Generator().manual_seed(place))
    if rows:
        buffer.extend(stamped_rows(rows, stamp=place * BASE))
    return buffer


def ensemble(*rows: int, **settings: Any) -> ReplayBufferEnsemble:
    """An ensemble of buffers that hold so many rows."""
    settings.setdefault("generator", torch.Generator().manual_seed(0))
    settings.setdefault("batch_size", 8)
    return ReplayBufferEnsemble(*(member(place, count) for place, count in enumerate(rows)), **settings)


def routed_rows(ids: list[int], stamp: int = 0) -> TensorDict:
    """Rows with an entry `who`."""
    rows = stamped_rows(len(ids), stamp)
    rows["who"] = torch.tensor(ids)
    return rows


def stamps_by_member(rb: ReplayBufferEnsemble) -> list[list[int]]:
    """What each buffer holds."""
    return [buffer[:]["action"].tolist() if len(buffer) else [] for buffer in rb.members]
