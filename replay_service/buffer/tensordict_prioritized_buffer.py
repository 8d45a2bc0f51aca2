"""The buffer of TensorDicts whose records are drawn by priority."""

from __future__ import annotations

from typing import Any

import torch

from replay_service.buffer.assembly import make_storage
from replay_service.buffer.samplers.base import Sampler
from replay_service.buffer.samplers.prioritized import PrioritizedSampler
from replay_service.buffer.tensordict_buffer import TensorDictReplayBuffer
from replay_service.specs import Key

__all__ = ["TensorDictPrioritizedReplayBuffer"]


class TensorDictPrioritizedReplayBuffer(TensorDictReplayBuffer):
    """A `TensorDictReplayBuffer` with a `PrioritizedSampler` for as many records as its storage has room for.

    Samples carry `priority_weight` beside `index`. New records that have an entry `priority_key` take it as their priority; hand a batch
    back to `update_tensordict_priority` with that entry set to change it.

    Args:
        alpha: how much priorities matter; 0 draws uniformly.
        beta: how much `priority_weight` corrects for it.
        priority_key: the entry that holds priorities.
        eps: added to every priority.
        storage: where records lie; an instance, a class or a factory. None: `ListStorage(1000)`.
        sampler_device: where priorities lie: the CPU, also for None.
        sync: accepted for drop-in use: draws always know of all writes.
        reduction: what is made of several priorities of one record: `"max"`, `"min"`, `"mean"` or `"median"`.
        **kwargs: as `ReplayBuffer`, but for `sampler`.

    Raises:
        ValueError: a number is out of range, an unknown `reduction`, or another device.
        TypeError: a `sampler` is given.
    """

    def __init__(
        self,
        *,
        alpha: float,
        beta: float,
        priority_key: str | Key = "td_error",
        eps: float = 1e-8,
        storage: Any = None,
        sampler_device: torch.device | str | None = None,
        sync: bool = True,
        reduction: str = "max",
        **kwargs: Any,
    ) -> None:
        if kwargs.pop("sampler", None) is not None:
            raise TypeError(
                "sampler must be left out: this buffer makes its own; use TensorDictReplayBuffer for another"
            )
        made = make_storage(storage)
        sampler = PrioritizedSampler(made.max_size, alpha, beta, eps, reduction=reduction, device=sampler_device)
        super().__init__(priority_key=priority_key, storage=made, sampler=sampler, **kwargs)

    @property
    def prioritized_sampler(self) -> Sampler:
        """The sampler that holds the priorities."""
        return self._sampler
