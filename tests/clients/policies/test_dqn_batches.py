"""DQN on what episodic buffers give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from clients.policies.dqn import DQNPolicy
from replay_service.episodic import ReplayBuffer
from replay_service.episodic.batch import Batch
from tests.clients.policies.steps import filled, prioritized

STEPS = [(0, 1.0, False, False), (1, 2.0, False, False), (2, 3.0, True, False), (3, 4.0, False, True)]


class TenTimes(nn.Module):
    """Values of two actions in state s: 10 s and 10 s - 1, and a weight that can be learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, observation: Tensor) -> Tensor:
        return torch.cat([10.0 * observation, 10.0 * observation - 1.0], -1) + self.shift


def policy_of(**settings: Any) -> DQNPolicy:
    return DQNPolicy(TenTimes(), gamma=0.5, learning_rate=1e-9, **settings)


def test_acts_on_a_batch_in_kind() -> None:
    policy = policy_of().eval()
    answer = policy(Batch(obs=[[1.0]], info={}))
    assert (answer.act.tolist(), answer.action_value.tolist()) == ([0], [[10.0, 9.0]])
    random = policy(Batch(obs=np.ones((100, 1))), eps=1.0).act
    assert 20 < int(random.sum()) < 80


@pytest.mark.parametrize(
    ("n_step", "returns"),
    # Over one step r + 0.5 * 10 s'; state 2 terminates, state 3 is only cut off.
    [(1, [6.0, 12.0, 3.0, 24.0]), (2, [1 + 1 + 0.25 * 20, 2 + 1.5, 3.0, 24.0]), (3, [1 + 1 + 0.75, 3.5, 3.0, 24.0])],
)
def test_targets_over_several_steps(n_step: int, returns: list[float]) -> None:
    policy = policy_of(n_step=n_step)
    batch = policy.process_fn(*_sampled(filled(ReplayBuffer(10), STEPS)))
    assert batch.returns.tolist() == returns


def _sampled(buffer: ReplayBuffer) -> tuple[Any, Any, Any]:
    batch, indices = buffer.sample(0)
    return batch, buffer, indices


def test_what_a_buffer_has_summed_up_is_taken() -> None:
    class Summing(ReplayBuffer):
        returns_in_sample = True
        asked: Any = None

        def sample(self, size: int, **options: Any) -> Any:  # type: ignore[override]
            self.asked = options
            batch, indices = super().sample(size)
            ahead = {"rew": np.ones(len(indices)), "discount": np.zeros(len(indices)), "obs_next": batch.obs_next}
            batch["n_step"] = Batch(ahead)
            return batch, indices

    buffer = Summing(10)
    policy = policy_of(n_step=3)
    batch, indices = policy.sample(0, filled(buffer, STEPS))
    assert buffer.asked == {"n_step": 3, "gamma": 0.5}
    assert policy.process_fn(batch, None, indices).returns.tolist() == [1.0] * 4
    assert policy_of().sample_options == {}


def test_errors_become_priorities() -> None:
    buffer = filled(prioritized(), STEPS)
    statistics = policy_of(n_step=2).update(0, buffer)
    # Values of action 0 are 10 s, the targets those above.
    errors = np.abs(np.array([7.0, 3.5, 3.0, 24.0]) - np.array([0.0, 10.0, 20.0, 30.0]))
    weights = buffer.get_weight(np.arange(4))
    assert weights / weights.max() == pytest.approx(errors.min() / errors, rel=1e-5)
    assert statistics["value"] == pytest.approx(15.0)


def test_rows_count_by_their_weight() -> None:
    batch = Batch(
        obs=[[0.0], [0.0]], act=[0, 0], returns=[5.0, 5.0], rew=[0.0, 0.0], terminated=[1, 1], obs_next=[[1.0]] * 2
    )
    plain = policy_of().learn(batch)["loss"]
    batch.weight = np.array([1.0, 0.0])
    assert policy_of().learn(batch)["loss"] == pytest.approx(plain / 2)
    assert batch.weight == pytest.approx([5.0, 5.0])


def test_without_a_second_network_the_target_network_chooses() -> None:
    class Other(TenTimes):
        def forward(self, observation: Tensor) -> Tensor:
            return super().forward(observation) * torch.sign(self.shift + 1.0)

    policy = DQNPolicy(Other(), gamma=0.5, double=False)
    with torch.no_grad():
        next(iter(policy.acting_modules().parameters())).fill_(-2.0)  # the online network now prefers action 1
    batch = policy.process_fn(*_sampled(filled(ReplayBuffer(10), STEPS)))
    assert batch.returns.tolist() == [6.0, 12.0, 3.0, 24.0]


def test_the_documents_own_process_fn() -> None:
    class TwoSteps(DQNPolicy):
        def process_fn(self, batch: Any, buffer: Any, indices: Any) -> Any:
            buffer_len = len(buffer)
            batch_2 = buffer[(indices + 2) % buffer_len]
            # this will return a batch data where batch_2.obs is s_t+2
            # in short, buffer.obs[i] is equal to buffer[i].obs, but the former is more effecient.
            assert (batch_2.obs == buffer.obs[(indices + 2) % buffer_len]).all()
            Q = self(batch_2, eps=0).action_value.numpy()
            maxQ = Q.max(axis=-1)
            batch.returns = batch.rew + self.gamma * buffer.rew[(indices + 1) % buffer_len] + self.gamma**2 * maxQ
            return batch

    learnt = []

    class Noting(TwoSteps):
        def learn(self, batch: Any, **kwargs: Any) -> Any:
            learnt.append(batch.returns.tolist())
            return super().learn(batch)

    Noting(TenTimes(), gamma=0.5, learning_rate=1e-9).update(0, filled(ReplayBuffer(10), STEPS))
    assert learnt == [[1 + 1 + 0.25 * 20, 2 + 1.5 + 0.25 * 30, 3 + 2 + 0.0, 4 + 0.5 + 0.25 * 10]]
