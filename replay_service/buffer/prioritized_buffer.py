"""The buffer whose records are drawn by priority."""

from __future__ import annotations

from typing import Any

import torch

from replay_service.buffer.assembly import make_storage
from replay_service.buffer.replay_buffer import ReplayBuffer
from replay_service.buffer.samplers.base import Sampler
from replay_service.buffer.samplers.prioritized import PrioritizedSampler

__all__ = ["PrioritizedReplayBuffer"]


class PrioritizedReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` with a `PrioritizedSampler` for as many records as its storage has room for.

    Args:
        alpha: how much priorities matter; 0 draws uniformly.
        beta: how much `priority_weight` corrects for it.
        eps: added to every priority.
        dtype: of `priority_weight`.
        storage: where records lie; an instance, a class or a factory. None: `ListStorage(1000)`.
        sampler: another sampler instead; then `alpha`, `beta` and `eps` have no effect.
        sampler_device: where priorities lie: the CPU, also for None.
        sync: accepted for drop-in use: draws always know of all writes.
        **kwargs: as `ReplayBuffer`.

    Raises:
        ValueError: a number is out of range, another device, or `sampler_device` given with `sampler`.
    """

    def __init__(
        self,
        *,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float,
        storage: Any = None,
        sampler: Any = None,
        sampler_device: torch.device | str | None = None,
        sync: bool = True,
        **kwargs: Any,
    ) -> None:
        made = make_storage(storage)
        if sampler is None:
            sampler = PrioritizedSampler(made.max_size, alpha, beta, eps, dtype, device=sampler_device)
        elif sampler_device is not None:
            raise ValueError(f"sampler_device ({sampler_device}) must be left out where a sampler is given")
        super().__init__(storage=made, sampler=sampler, **kwargs)

    @property
    def prioritized_sampler(self) -> Sampler:
        """The sampler that holds the priorities."""
        return self._sampler
