"""The two kinds of rows that every benchmark moves."""

from __future__ import annotations

import torch
from tensordict import TensorDict

__all__ = ["KINDS", "large_rows", "small_rows"]


def small_rows(rows: int) -> TensorDict:
    """Transitions like CartPole's: 5 leaves, 49 bytes a row."""
    return TensorDict(
        {
            "obs": torch.randn(rows, 4),
            "action": torch.randint(0, 2, (rows,)),
            "next": {
                "obs": torch.randn(rows, 4),
                "reward": torch.randn(rows, 1),
                "done": torch.zeros(rows, 1, dtype=torch.bool),
            },
        },
        [rows],
    )


def large_rows(rows: int) -> TensorDict:
    """Transitions like Atari's: two stacks of four 84x84 frames and three scalars, 56,461 bytes a row."""
    data = small_rows(rows)
    data["obs"] = torch.randint(0, 255, (rows, 4, 84, 84), dtype=torch.uint8)
    data["next", "obs"] = torch.randint(0, 255, (rows, 4, 84, 84), dtype=torch.uint8)
    return data


# name -> (maker, capacity, rows of an extend, rows of a sample)
KINDS = {"small": (small_rows, 100_000, 64, 256), "large": (large_rows, 10_000, 32, 256)}
