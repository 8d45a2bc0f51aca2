"""The life of a policy around its `update`, on what episodic buffers give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from clients.policy import Policy
from replay_service.episodic import PrioritizedReplayBuffer, ReplayBuffer
from replay_service.episodic.batch import Batch


class Noting(Policy):
    """Notes its phases; `learn` makes 3 of every weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.order: list[tuple[str, bool, bool, int]] = []

    def forward(self, data: Any, state: Any = None) -> Batch:
        return Batch(act=np.zeros(len(data.obs)))

    def process_fn(self, batch: Any, buffer: Any, indices: Any) -> Any:
        self.order.append(("process", self.training, self.updating, len(indices)))
        return super().process_fn(batch, buffer, indices)

    def learn(self, batch: Any, **kwargs: Any) -> dict[str, float | list[float]]:
        self.order.append(("learn", self.training, self.updating, len(batch)))
        if "weight" in batch:
            batch.weight = np.full(len(batch), 3.0)
        return {"loss": 1.0, **kwargs}

    def post_process_fn(self, batch: Any, buffer: Any, indices: Any) -> None:
        self.order.append(("post", self.training, self.updating, len(indices)))
        super().post_process_fn(batch, buffer, indices)

    def acting_modules(self) -> nn.Module:
        return self.layer


def filled(buffer: ReplayBuffer) -> ReplayBuffer:
    for step in range(6):
        buffer.add(Batch(obs=step, act=step, rew=step, terminated=False, truncated=False, obs_next=step + 1))
    return buffer


@pytest.mark.parametrize("testing", [False, True])
def test_the_phases_and_their_states(testing: bool) -> None:
    policy = Noting()
    policy.train(not testing)
    assert policy.update(3, filled(ReplayBuffer(10)), extra=2.0) == {"loss": 1.0, "extra": 2.0}
    assert policy.order == [(phase, True, True, 3) for phase in ("process", "learn", "post")]
    assert (policy.training, policy.updating) == (not testing, False)


def test_none_and_zero() -> None:
    policy = Noting()
    assert policy.update(3, None) == {}
    policy.update(0, filled(ReplayBuffer(10)))
    assert policy.order[1] == ("learn", True, True, 6)


def test_weights_go_back_as_priorities() -> None:
    buffer = PrioritizedReplayBuffer(10, alpha=1.0, beta=1.0)
    policy = Noting()
    filled(buffer)
    batch, indices = buffer.sample(3)
    policy.update_on((batch, indices), buffer)
    # Relative weights are the inverse of priorities, and those that were never updated have the first one, 1.
    drawn = np.isin(np.arange(6), indices)
    assert buffer.get_weight(np.arange(6)) == pytest.approx(np.where(drawn, 1 / 3, 1.0), rel=1e-6)


def test_steps_that_were_overwritten_since_the_draw_keep_their_priority() -> None:
    buffer = PrioritizedReplayBuffer(6, alpha=1.0, beta=1.0)
    policy = Noting()
    drawn = filled(buffer).sample(0)
    buffer.add(Batch(obs=6, act=6, rew=6, terminated=False, truncated=False, obs_next=7))  # over slot 0
    policy.update_on(drawn, buffer)
    assert buffer.weight.tolist() == pytest.approx([1, 3, 3, 3, 3, 3])


def test_weights_go_to_buffers_that_know_no_generations() -> None:
    class Plain(ReplayBuffer):
        def update_weight(self, index: Any, new_weight: Any) -> None:
            self.told = (index.tolist(), new_weight.tolist())

    buffer = Plain(3)
    Noting().post_process_fn(Batch(weight=np.array([1.0, 2.0])), buffer, np.array([0, 1]))
    assert buffer.told == ([0, 1], [1.0, 2.0])


def test_batches_without_weights_change_no_priority() -> None:
    class Refusing(ReplayBuffer):
        def update_weight(self, *_: Any) -> None:
            raise RuntimeError("this buffer has none")

    Noting().update(3, filled(Refusing(10)))


def test_learning_rates_step_after_each_update() -> None:
    policy = Noting()
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    policy.lr_scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    optimizer.step()
    policy.update(3, filled(ReplayBuffer(10)))
    policy.update(3, None)
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_what_stands_between_policy_and_environment_by_default() -> None:
    policy, act = Noting(), np.zeros((2, 1))
    assert policy.map_action(act) is policy.map_action_inverse(act) is policy.exploration_noise(act, Batch()) is act
