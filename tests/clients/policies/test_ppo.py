from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import Tensor, nn

from clients.policies.heads import CategoricalHead
from clients.policies.ppo import PPOPolicy
from replay_service.episodic import ReplayBuffer
from replay_service.episodic.batch import Batch
from replay_service.episodic.returns import episodic_return
from tests.clients.policies.steps import filled

OBSERVATIONS = spaces.Box(-10, 10, (1,))
STEPS = [(0, 1.0, False, False), (1, 2.0, True, False), (2, 3.0, False, True), (3, 4.0, False, False)]
RETURNS = [1 + 0.5 * (1 - 0.5) * 1 + 0.25 * 2, 2.0, 3 + 0.5 * 3, 4 + 0.5 * 4]


class Identity(nn.Module):
    """Values a state by its number."""

    def forward(self, observation: Tensor) -> Tensor:
        return observation


class Even(nn.Module):
    """Likes all three actions alike, as far as its weight is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.tilt = nn.Parameter(torch.zeros(3))

    def forward(self, observation: Tensor) -> Tensor:
        return self.tilt.expand(len(observation), 3)


def policy_of(**settings: Any) -> PPOPolicy:
    return PPOPolicy(Even(), Identity(), CategoricalHead(), gamma=0.5, gae_lambda=0.5, **settings)


def test_processing_gives_returns_advantages_and_what_the_actions_were_worth() -> None:
    buffer = filled(ReplayBuffer(10), STEPS, action=1)
    batch, indices = buffer.sample(0)
    rows = policy_of().process_fn(batch, buffer, indices)
    assert rows.returns.tolist() == RETURNS
    assert rows.advantages.tolist() == [value - state for value, state in zip(RETURNS, range(4), strict=True)]
    assert rows.log_probability.tolist() == pytest.approx([np.log(1 / 3)] * 4)
    assert "returns" not in batch


def test_a_buffer_may_compute_the_returns_itself() -> None:
    class Computing:
        asked: Any = None

        def episodic_return(self, *args: Any, **settings: Any) -> Any:
            self.asked = settings
            return episodic_return(buffer, *args, **settings)

    buffer, other = filled(ReplayBuffer(10), STEPS), Computing()
    batch, indices = buffer.sample(0)
    assert policy_of().process_fn(batch, other, indices).returns.tolist() == RETURNS
    assert other.asked == {"gamma": 0.5, "gae_lambda": 0.5}


@pytest.mark.parametrize("with_trajectories", [True, False])
def test_rows_of_a_tensordict(with_trajectories: bool) -> None:
    state, reward, terminated, truncated = (torch.tensor(column) for column in zip(*STEPS, strict=True))
    data = TensorDict(
        {
            "observation": state[:, None].float(),
            "action": torch.ones(4, dtype=torch.int64),
            "next": {
                "observation": state[:, None].float() + 1,
                "reward": reward[:, None],
                "terminated": terminated[:, None],
                "truncated": truncated[:, None],
                "done": (terminated | truncated)[:, None],
            },
        },
        batch_size=[4],
    )
    if with_trajectories:
        # The third row no longer ends its episode, but the fourth is one of another environment.
        data["next", "done"][2] = data["next", "truncated"][2] = False
        data["collector", "traj_ids"] = torch.tensor([7, 7, 8, 9])
    assert policy_of().process_fn(data, None, None).returns.tolist() == RETURNS
    assert set(policy_of().update_on(data, None, batch_size=2, repeat=1)) == {
        "loss",
        "loss/actor",
        "loss/critic",
        "entropy",
    }


def test_each_row_is_learnt_from_as_often_as_asked() -> None:
    losses = policy_of().update(0, filled(ReplayBuffer(10), STEPS), batch_size=2, repeat=3)
    assert {name: len(values) for name, values in losses.items()} == dict.fromkeys(losses, 6)
    assert losses["entropy"][0] == pytest.approx(np.log(3))
    with pytest.raises(ValueError, match=r"repeat \(0\)"):
        policy_of().update(0, filled(ReplayBuffer(10), STEPS), repeat=0)


def test_the_better_action_becomes_likelier_within_the_clip() -> None:
    buffer = ReplayBuffer(100)
    for row in range(60):
        filled(buffer, [(0, float(row % 3 == 2), True, False)], action=row % 3)
    policy = policy_of(learning_rate=0.004, clip=0.2)
    policy.update(0, buffer, batch_size=60, repeat=200)
    chance = policy.acting_modules().network.tilt.detach().softmax(-1)
    assert chance.argmax() == 2
    # The others are pushed down until they are 0.8 times as likely; a last step of Adam may go somewhat farther.
    assert 1.35 / 3 < float(chance[2]) < 1.6 / 3


def test_acts_by_chance_while_training_only() -> None:
    policy = policy_of()
    with torch.no_grad():
        policy.acting_modules().network.tilt[1] = 1.0
    data = Batch(obs=np.zeros((300, 1), dtype=np.float32))
    assert set(policy(data).act.tolist()) == {0, 1, 2}
    assert set(policy.eval()(data).act.tolist()) == {1}
    kind = TensorDict({"observation": torch.zeros(2, 1)}, batch_size=[2])
    assert policy(kind)["action"].tolist() == [1, 1]


def test_continuous_actions() -> None:
    space = spaces.Box(-2, 2, (3,))
    policy = PPOPolicy.for_spaces(OBSERVATIONS, space, seed=1)
    again = PPOPolicy.for_spaces(OBSERVATIONS, space, seed=1)
    data = Batch(obs=np.ones((5, 1), dtype=np.float32))
    act = policy(data).act
    assert (act.shape, act.dtype) == ((5, 3), np.float32)
    assert np.array_equal(again(data).act, act)
    assert policy.map_action(torch.full((1, 3), 5.0)).tolist() == [[2.0] * 3]
    buffer = filled(ReplayBuffer(10), STEPS, action=np.zeros(3, dtype=np.float32))
    losses = policy.update(0, buffer, batch_size=4, repeat=1)
    assert np.isfinite(list(losses.values())).all()


def test_spaces_and_numbers_that_do_not_fit() -> None:
    with pytest.raises(TypeError, match="observation_space"):
        PPOPolicy.for_spaces(spaces.Discrete(2), spaces.Discrete(2))
    with pytest.raises(TypeError, match="action_space"):
        PPOPolicy.for_spaces(OBSERVATIONS, spaces.MultiBinary(2))
    for name in ("gamma", "gae_lambda"):
        with pytest.raises(ValueError, match=name):
            PPOPolicy(Even(), Identity(), CategoricalHead(), **{name: 1.5})
    with pytest.raises(ValueError, match="clip"):
        policy_of(clip=0.0)
