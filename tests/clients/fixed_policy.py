"""A policy whose action is a weight, so that a stored action tells which weights acted."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import nn

from clients.policy import Policy
from replay_service.episodic.batch import Batch


class FixedPolicy(Policy):
    """Takes action `choice` everywhere; `calls` counts forwards and `seen` the states (training, updating) in them."""

    def __init__(self, choice: int = 0) -> None:
        super().__init__()
        self.actor = nn.Module()
        self.actor.register_buffer("choice", torch.tensor(choice))
        self.calls = 0
        self.order: list[tuple[str, bool, bool]] = []

    def forward(self, data: Any, state: Any = None) -> Any:
        self.calls += 1
        return Batch(act=self.actor.choice.expand(len(data.obs)).clone())

    def process_fn(self, batch: TensorDictBase, buffer: Any, indices: torch.Tensor) -> TensorDictBase:
        self._note("process")
        return batch

    def learn(self, batch: TensorDictBase) -> dict[str, float]:
        self._note("learn")
        return {"rows": float(batch.batch_size[0])}

    def post_process_fn(self, batch: TensorDictBase, buffer: Any, indices: torch.Tensor) -> None:
        self._note("post")
        super().post_process_fn(batch, buffer, indices)

    def acting_modules(self) -> nn.Module:
        return self.actor

    def _note(self, phase: str) -> None:
        self.order.append((phase, self.training, self.updating))
