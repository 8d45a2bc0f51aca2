"""What a policy is to collectors, learners and trainers: it acts, it learns, and its acting weights travel.

States, as trainers and collectors set them:

    =============  ===============  ===============
    state          policy.training  policy.updating
    =============  ===============  ===============
    collecting     True             False
    updating       True             True
    testing        False            False
    =============  ===============  ===============
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

__all__ = ["Policy"]


class Policy(nn.Module, ABC):
    """Base of all policies: `forward` acts; `update` = sample, `process_fn`, `learn`, `post_process_fn`, in that order."""

    def __init__(self) -> None:
        super().__init__()
        self.updating = False

    @abstractmethod
    def forward(self, data: TensorDictBase, state: Any = None) -> TensorDictBase:
        """Act on `data["observation"]` `[N, *obs]`: a TensorDict `[N]` with "action" and, for recurrent policies, "state"."""

    @abstractmethod
    def learn(self, batch: TensorDictBase) -> dict[str, float]:
        """One optimisation step on a batch `[B]` of transitions; statistics by name. May add columns to `batch`."""

    @abstractmethod
    def acting_modules(self) -> nn.Module:
        """The part whose state acts: all that a collector needs of a newer version (no target network, no optimizer)."""

    def process_fn(self, batch: TensorDictBase, buffer: Any, indices: Tensor) -> TensorDictBase:
        """Prepare a sampled batch `[B]` for `learn`, where that needs more of the buffer than its rows; here: unchanged."""
        return batch

    def post_process_fn(self, batch: TensorDictBase, buffer: Any, indices: Tensor) -> None:
        """Give the buffer what `learn` found out: new priorities, where the batch was drawn by priority and has "td_error"."""
        keys = batch.keys()
        if "priority_weight" in keys and "td_error" in keys:
            buffer.update_tensordict_priority(batch)

    def update(self, batch_size: int | None, buffer: Any) -> dict[str, float]:
        """Sample `batch_size` rows from `buffer` (None: its own batch size) and learn from them. A buffer of None gives `{}`."""
        if buffer is None:
            return {}
        return self.update_on(buffer.sample(batch_size), buffer)

    def update_on(self, batch: TensorDictBase, buffer: Any) -> dict[str, float]:
        """Learn from a batch `[B]` that was sampled from `buffer` already, for instance by its `prefetch`."""
        indices = batch.get("index")
        with self._updating():
            batch = self.process_fn(batch, buffer, indices)
            statistics = self.learn(batch)
            self.post_process_fn(batch, buffer, indices)
        return statistics

    def weights(self) -> dict[str, Tensor]:
        """A copy on the CPU of what acts, to be published."""
        return {name: value.detach().cpu().clone() for name, value in self.acting_modules().state_dict().items()}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Act with `weights`, which another copy of this policy gave; raises RuntimeError where they don't fit."""
        self.acting_modules().load_state_dict(weights)

    @contextmanager
    def _updating(self) -> Iterator[None]:
        was_training = self.training
        if not was_training:
            self.train()
        self.updating = True
        try:
            yield
        finally:
            self.updating = False
            if not was_training:
                self.eval()

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device
