"""Records with a version each, and patches of their state: what late writes are tested on."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict

from replay_service import LazyTensorStorage, TensorDictReplayBuffer, TensorDictRoundRobinWriter


def versioned_buffer(capacity: int = 8, rows: int = 4, **parts: Any) -> TensorDictReplayBuffer:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(capacity),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        batch_size=4,
        **parts,
    )
    if rows:
        buffer.extend(versioned_rows(rows))
    return buffer


def versioned_rows(count: int, start: int = 0) -> TensorDict:
    values = torch.arange(start, start + count)
    return TensorDict(
        {
            "observation": values.float()[:, None].repeat(1, 2),
            "state": torch.zeros(count, 3),
            "version": torch.zeros(count, dtype=torch.int64),
            "next": {"version": torch.zeros(count, 1)},
        },
        [count],
    )


def state_patch(*values: float) -> dict[str, torch.Tensor]:
    return {"state": torch.tensor(values, dtype=torch.float32)[:, None].repeat(1, 3)}


def states_of(buffer: TensorDictReplayBuffer) -> list[float]:
    return buffer[:]["state"][:, 0].tolist()  # type: ignore[no-any-return]


def held_handles(buffer: TensorDictReplayBuffer, *slots: int) -> dict[str, torch.Tensor]:
    index = torch.tensor(slots)
    return {"index": index, "generation": buffer.writer.generations_of(index)}
