"""A policy of batches whose loss counts its updates, so that what trainers do can be read off it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from clients.policy import Policy
from replay_service.episodic.batch import Batch


class BatchPolicy(Policy):
    """Takes action `choice`; `states` holds (training, updating) of every forward, `learned` the rows of every update."""

    def __init__(self, choice: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.net = nn.Linear(1, 1)
        self.choice = choice
        self.calls = 0
        self.states: list[tuple[bool, bool]] = []
        self.learned: list[tuple[int, dict[str, Any]]] = []

    def forward(self, data: Any, state: Any = None) -> Any:
        self.calls += 1
        self.states.append((self.training, self.updating))
        return Batch(act=np.full(len(data.obs), self.choice))

    def learn(self, batch: Any, **kwargs: Any) -> Any:
        self.learned.append((len(batch), kwargs))
        return {"loss": float(len(self.learned))}

    def acting_modules(self) -> nn.Module:
        return self.net


class RecurrentPolicy(BatchPolicy):
    """Its state counts the steps of each episode; the count is the stored policy column, too."""

    def forward(self, data: Any, state: Any = None) -> Any:
        count = torch.zeros(len(data.obs), 1) if state is None else state["count"]
        count = count + 1
        return Batch(act=np.zeros(len(data.obs), np.int64), state=Batch(count=count), policy=Batch(seen=count[:, 0]))
