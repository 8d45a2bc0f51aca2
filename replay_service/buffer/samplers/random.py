"""Uniform draws with replacement."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from replay_service.buffer.samplers.base import Sampler, require_rows
from replay_service.buffer.storages.base import Storage

__all__ = ["RandomSampler"]


class RandomSampler(Sampler):
    """Every filled record with the same probability, with replacement."""

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draws `batch_size` records uniformly: int64 `[batch_size]`, no info."""
        return torch.randint(0, require_rows(storage), (batch_size,), generator=storage.generator, device="cpu"), {}
