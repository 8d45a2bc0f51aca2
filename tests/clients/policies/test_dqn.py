from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces
from tensordict import TensorDict
from torch import Tensor, nn

from clients.policies.dqn import DQNPolicy, EpsilonSchedule, QNetwork


class Table(nn.Module):
    """Values of two actions in three states; an observation is the number of the state."""

    def __init__(self, values: list[list[float]]) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.tensor(values))

    def forward(self, observation: Tensor) -> Tensor:
        return self.values[observation.long().flatten()]


def observations(*states: int) -> Tensor:
    return torch.tensor(states, dtype=torch.float32)[:, None]


def batch_of(
    state: int, action: int, reward: float, following: int, *, terminated: bool = False, truncated: bool = False
) -> TensorDict:
    def flag(value: bool) -> Tensor:
        return torch.tensor([[value]])

    following_row = {
        "observation": observations(following),
        "reward": torch.tensor([[reward]]),
        "terminated": flag(terminated),
        "truncated": flag(truncated),
        "done": flag(terminated or truncated),
    }
    return TensorDict(
        {"observation": observations(state), "action": torch.tensor([action]), "next": following_row}, batch_size=[1]
    )


def test_greedy_unless_collecting() -> None:
    policy = DQNPolicy(Table([[0.0, 1.0], [2.0, 1.0], [0.0, 0.0]]))
    data = TensorDict({"observation": observations(*[0, 1] * 500)}, batch_size=[1000])
    greedy = [1, 0] * 500
    assert policy.epsilon == 1.0
    drawn = policy(data)["action"]
    assert drawn.dtype == torch.int64
    assert 400 < int((drawn == torch.tensor(greedy)).sum()) < 600
    policy.updating = True
    assert policy(data)["action"].tolist() == greedy
    policy.updating = False
    assert policy.eval()(data)["action"].tolist() == greedy
    policy.train()
    policy.epsilon = 0.0
    assert policy(data)["action"].tolist() == greedy


def test_exploration_repeats_with_its_generator() -> None:
    data = TensorDict({"observation": observations(*[0] * 50)}, batch_size=[50])
    drawn = [
        DQNPolicy(Table([[0.0, 1.0]]), generator=torch.Generator().manual_seed(5))(data)["action"].tolist()
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1]


def td_error(batch: TensorDict) -> float:
    """Against online values [1, 2], [5, 4], [0, 0] and target values [10, 20], [30, 40], [7, 7], discount 0.5."""
    policy = DQNPolicy(Table([[1.0, 2.0], [5.0, 4.0], [0.0, 0.0]]), gamma=0.5, tau=1.0)
    policy.load_weights(
        {"network.values": torch.tensor([[10.0, 20.0], [30.0, 40.0], [7.0, 7.0]]), "epsilon": torch.ones(())}
    )
    policy.learn(batch_of(2, 0, 3.5 + 7.0 - 7.0, 2, truncated=True))  # tau = 1: the target takes these values over
    policy.load_weights(
        {"network.values": torch.tensor([[1.0, 2.0], [5.0, 4.0], [0.0, 0.0]]), "epsilon": torch.ones(())}
    )
    policy.learn(batch)
    return float(batch["td_error"])


def test_target_is_the_target_networks_value_of_the_online_networks_action() -> None:
    # The online network prefers action 0 in state 1, which the target network values 30: 1 + 0.5 * 30 - 2.
    assert td_error(batch_of(0, 1, 1.0, 1)) == pytest.approx(14.0, abs=0.01)


def test_truncated_episodes_bootstrap_and_terminated_ones_do_not() -> None:
    assert td_error(batch_of(0, 1, 1.0, 1, truncated=True)) == pytest.approx(14.0, abs=0.01)
    assert td_error(batch_of(0, 1, 1.0, 1, terminated=True)) == pytest.approx(1.0, abs=0.01)


def test_target_follows_by_tau() -> None:
    policy = DQNPolicy(Table([[0.0, 0.0], [0.0, 0.0]]), gamma=1.0, tau=0.25)
    policy.load_weights({"network.values": torch.full((2, 2), 8.0), "epsilon": torch.ones(())})
    first, second = batch_of(0, 0, 0.0, 1), batch_of(0, 0, 0.0, 1)
    policy.learn(first)
    policy.learn(second)
    assert float(first["td_error"]) == pytest.approx(8.0, abs=0.01)
    assert float(second["td_error"]) == pytest.approx(8.0 - 0.25 * 8.0, abs=0.01)


def test_importance_weights_scale_the_loss() -> None:
    weighted = batch_of(0, 0, 5.0, 1, terminated=True)
    weighted["priority_weight"] = torch.tensor([0.5])
    plain = DQNPolicy(Table([[0.0, 0.0], [0.0, 0.0]])).learn(batch_of(0, 0, 5.0, 1, terminated=True))
    assert plain["loss"] == pytest.approx(4.5)
    assert DQNPolicy(Table([[0.0, 0.0], [0.0, 0.0]])).learn(weighted)["loss"] == pytest.approx(2.25)


def test_learning_finds_the_value() -> None:
    policy = DQNPolicy(QNetwork(1, 2, hidden=(16,), generator=torch.Generator().manual_seed(0)), learning_rate=0.01)
    losses = [policy.learn(batch_of(1, 1, 3.0, 0, terminated=True))["loss"] for _ in range(200)]
    assert losses[-1] < 1e-3 < losses[0]
    data = TensorDict({"observation": observations(1)}, batch_size=[1])
    assert float(policy.eval()(data)["action_value"][0, 1]) == pytest.approx(3.0, abs=0.1)


def test_weights_carry_epsilon_but_no_target() -> None:
    policy = DQNPolicy.for_spaces(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), seed=1)
    policy.epsilon = 0.25
    other = DQNPolicy.for_spaces(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), seed=2)
    weights = policy.weights()
    assert sum(value.numel() for value in weights.values()) == 1 + 4 * 128 + 128 + 128 * 128 + 128 + 128 * 2 + 2
    other.load_weights(weights)
    assert other.epsilon == 0.25
    data = TensorDict({"observation": torch.rand(5, 4)}, batch_size=[5])
    assert torch.equal(policy(data)["action_value"], other(data)["action_value"])


def test_equal_seeds_give_equal_networks() -> None:
    made = [DQNPolicy.for_spaces(spaces.Box(-1, 1, (2, 3)), spaces.Discrete(4), seed=s).weights() for s in (3, 3, 4)]
    name = "network.layers.0.weight"
    assert made[0][name].shape == (128, 6)
    assert torch.equal(made[0][name], made[1][name])
    assert not torch.equal(made[0][name], made[2][name])


@pytest.mark.parametrize(
    ("steps", "epsilon"), [(-5, 1.0), (0, 1.0), (50, 0.55), (100, pytest.approx(0.1)), (10_000, pytest.approx(0.1))]
)
def test_epsilon_falls_in_a_line(steps: int, epsilon: Any) -> None:
    assert EpsilonSchedule(1.0, 0.1, 100)(steps) == epsilon


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"end \(1.5\) must be a probability"):
        EpsilonSchedule(end=1.5)
    with pytest.raises(ValueError, match=r"steps \(0\) must be at least 1"):
        EpsilonSchedule(steps=0)
    with pytest.raises(ValueError, match=r"gamma \(1.01\) must be above 0"):
        DQNPolicy(Table([[0.0]]), gamma=1.01)
    with pytest.raises(ValueError, match=r"epsilon \(-0.1\) must be a probability"):
        DQNPolicy(Table([[0.0]])).epsilon = -0.1
    with pytest.raises(TypeError, match=r"observation_space .* must be a Box"):
        DQNPolicy.for_spaces(spaces.Discrete(2), spaces.Discrete(2))
    with pytest.raises(TypeError, match=r"action_space .* must be Discrete"):
        DQNPolicy.for_spaces(spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (2,)))
