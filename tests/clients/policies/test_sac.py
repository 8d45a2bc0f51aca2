from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import Tensor, nn

from clients.policies.sac import GaussianActor, SACPolicy, TwinCritic
from replay_service.episodic import ReplayBuffer
from replay_service.episodic.batch import Batch
from tests.clients.policies.steps import filled, prioritized

OBSERVATIONS, ACTIONS = spaces.Box(-10, 10, (1,)), spaces.Box(-2, 2, (2,))
STEPS = [(0, 1.0, False, False), (1, 2.0, True, False), (2, 3.0, False, True)]


class Narrow(nn.Module):
    """Acts with 0, and hardly anything else."""

    def __init__(self, log_scale: float = -20.0) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(2))
        self.log_scale = log_scale

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.mean.expand(len(observation), 2)
        return mean, torch.full_like(mean, self.log_scale)


class StateAndMore(nn.Module):
    """Values states by their number, the second critic by one more."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        value = observation.squeeze(-1) + self.shift + 0.0 * action.sum(-1)
        return torch.stack([value, value + 1.0])


def policy_of(**settings: Any) -> SACPolicy:
    return SACPolicy(Narrow(), StateAndMore(), action_space=ACTIONS, gamma=0.5, temperature=1e-9, **settings)


def test_targets_are_the_lesser_value_and_the_entropy() -> None:
    buffer = filled(ReplayBuffer(10), STEPS, action=np.zeros(2, np.float32))
    batch, indices = buffer.sample(0)
    assert policy_of().process_fn(batch, buffer, indices).returns.tolist() == pytest.approx([1.5, 2.0, 4.5], abs=1e-5)
    batch, indices = buffer.sample(0)
    summed = policy_of(n_step=2).process_fn(batch, buffer, indices)
    assert summed.returns.tolist() == pytest.approx([2.0, 2.0, 4.5], abs=1e-5)


def test_log_probabilities_are_those_of_squashed_normal_actions() -> None:
    policy = SACPolicy(Narrow(log_scale=0.3), StateAndMore(), action_space=ACTIONS, gamma=1.0, temperature=1.0)
    rows = 10_000
    columns = {
        "obs": np.zeros((rows, 1)),
        "obs_next": np.ones((rows, 1)),
        "act": np.zeros((rows, 2)),
        "rew": np.zeros(rows),
    }
    batch = policy.process_fn(Batch(columns, terminated=np.zeros(rows, dtype=np.bool_)), None, np.arange(rows))
    # Each target is the value 1 of the next state minus one log-probability: on average, that plus the entropy.
    found = float(batch.returns.mean()) - 1.0
    normal = torch.distributions.Normal(0.0, math.exp(0.3))
    squashed = torch.distributions.TransformedDistribution(normal, [torch.distributions.transforms.TanhTransform()])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        drawn = normal.sample((100_000,))
    expected = -2 * float(squashed.log_prob(torch.tanh(drawn.clamp(-6, 6))).mean())
    assert found == pytest.approx(expected, abs=0.05)


def test_acts_by_chance_while_training_only() -> None:
    policy = SACPolicy.for_spaces(OBSERVATIONS, ACTIONS, hidden=(8,), seed=1)
    data = Batch(obs=np.zeros((50, 1), dtype=np.float32))
    act = policy(data).act
    assert (act.shape, act.dtype) == ((50, 2), np.float32)
    assert np.abs(act).max() < 1.0
    assert len(np.unique(act, axis=0)) == 50
    assert len(np.unique(policy.eval()(data).act, axis=0)) == 1
    assert np.array_equal(SACPolicy.for_spaces(OBSERVATIONS, ACTIONS, hidden=(8,), seed=1)(data).act, act)
    assert policy.map_action(torch.ones(1, 2)).tolist() == [[2.0, 2.0]]
    kind = TensorDict({"observation": torch.zeros(3, 1)}, batch_size=[3])
    assert policy(kind)["action"].shape == (3, 2)


def test_errors_become_priorities() -> None:
    buffer = filled(prioritized(), STEPS, action=np.zeros(2, np.float32))
    policy_of().update(0, buffer)
    errors = np.abs([[1.5 - 0, 1.5 - 1], [2 - 1, 2 - 2], [4.5 - 2, 4.5 - 3]]).mean(axis=1)
    weights = buffer.get_weight(np.arange(3))
    assert weights / weights.max() == pytest.approx(errors.min() / errors, rel=1e-4)


def test_learns_the_better_action_from_a_tensordict_as_from_a_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    action = torch.rand(128, 2, generator=generator) * 2 - 1
    reward = -(action - 0.5).square().sum(-1, keepdim=True)
    end = torch.ones(128, 1, dtype=torch.bool)
    following = {"observation": torch.zeros(128, 1), "reward": reward, "terminated": end, "done": end}
    data = TensorDict({"observation": torch.zeros(128, 1), "action": action, "next": following}, batch_size=[128])
    same = Batch(
        obs=np.zeros((128, 1), np.float32),
        act=action.numpy(),
        rew=reward.squeeze(-1).double().numpy(),
        terminated=np.ones(128, dtype=np.bool_),
        obs_next=np.zeros((128, 1), np.float32),
    )
    found = []
    for batch in (data, same):
        policy = SACPolicy.for_spaces(
            OBSERVATIONS, ACTIONS, hidden=(32,), seed=3, actor_learning_rate=0.01, critic_learning_rate=0.01
        )
        for _ in range(120):
            losses = policy.update_on(batch, None)
        found.append(losses)
    assert found[0] == pytest.approx(found[1], rel=1e-3)
    chosen = policy.eval()(Batch(obs=np.zeros((1, 1), np.float32))).act
    assert chosen.tolist()[0] == pytest.approx([0.5, 0.5], abs=0.15)


def test_the_temperature_falls_while_there_is_more_entropy_than_wanted() -> None:
    buffer = filled(ReplayBuffer(10), STEPS, action=np.zeros(2, np.float32))
    for target_entropy, falls in ((-50.0, True), (50.0, False)):
        policy = SACPolicy.for_spaces(
            OBSERVATIONS, ACTIONS, hidden=(8,), target_entropy=target_entropy, temperature_learning_rate=0.1
        )
        before = policy.temperature
        policy.update(0, buffer)
        assert (policy.temperature < before) is falls


def test_refused() -> None:
    with pytest.raises(TypeError, match="action_space"):
        SACPolicy.for_spaces(OBSERVATIONS, spaces.Discrete(2))
    with pytest.raises(TypeError, match="one dimension"):
        SACPolicy.for_spaces(OBSERVATIONS, spaces.Box(-1, 1, (2, 2)))
    with pytest.raises(ValueError, match="without bounds"):
        SACPolicy.for_spaces(OBSERVATIONS, spaces.Box(-np.inf, np.inf, (2,)))
    with pytest.raises(ValueError, match="temperature"):
        SACPolicy(GaussianActor(1, 2), TwinCritic(1, 2), action_space=ACTIONS, temperature=0.0)
    for name in ("gamma", "tau"):
        with pytest.raises(ValueError, match=rf"{name} \(0.0\)"):
            SACPolicy.for_spaces(OBSERVATIONS, ACTIONS, **{name: 0.0})
    with pytest.raises(ValueError, match=r"n_step \(0\)"):
        policy_of(n_step=0)
