from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from clients.policy import Policy
from replay_service import LazyTensorStorage, TensorDictReplayBuffer
from tests.clients.fixed_policy import FixedPolicy


def filled(rows: int = 6) -> TensorDictReplayBuffer:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4)
    buffer.extend(TensorDict({"observation": torch.arange(float(rows))}, batch_size=[rows]))
    return buffer


def test_update_goes_through_its_phases_in_the_updating_state() -> None:
    policy = FixedPolicy()
    assert policy.update(3, filled()) == {"rows": 3.0}
    assert policy.order == [("process", True, True), ("learn", True, True), ("post", True, True)]
    assert (policy.training, policy.updating) == (True, False)


def test_update_leaves_a_testing_policy_testing() -> None:
    policy = FixedPolicy().eval()
    policy.update(None, filled())
    assert policy.order[1] == ("learn", True, True)
    assert (policy.training, policy.updating) == (False, False)


def test_no_buffer_no_update() -> None:
    policy = FixedPolicy()
    assert policy.update(4, None) == {}
    assert policy.order == []


def test_a_learner_that_fails_leaves_the_updating_state() -> None:
    class Failing(FixedPolicy):
        def learn(self, batch: Any) -> dict[str, float]:
            raise RuntimeError("diverged")

    policy = Failing()
    with pytest.raises(RuntimeError, match="diverged"):
        policy.update(3, filled())
    assert not policy.updating


class Priorities:
    """Notes the batches whose priorities it is given."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def update_tensordict_priority(self, batch: Any) -> None:
        self.given.append(batch["td_error"].tolist())


@pytest.mark.parametrize(("by_priority", "given"), [(True, [[3.0, 4.0]]), (False, [])])
def test_priorities_go_back_where_the_batch_was_drawn_by_them(by_priority: bool, given: list[Any]) -> None:
    batch = TensorDict({"index": torch.tensor([0, 1]), "td_error": torch.tensor([3.0, 4.0])}, batch_size=[2])
    if by_priority:
        batch["priority_weight"] = torch.ones(2)
    buffer = Priorities()
    FixedPolicy().update_on(batch, buffer)
    assert buffer.given == given


def test_weights_are_a_copy_that_another_policy_takes() -> None:
    policy, other = FixedPolicy(1), FixedPolicy(2)
    weights = policy.weights()
    policy.actor.choice.fill_(7)
    other.load_weights(weights)
    assert int(other.actor.choice) == 1
    with pytest.raises(RuntimeError, match="choice"):
        other.load_weights({"something": torch.zeros(1)})


def test_a_policy_of_two_methods_travels_whole() -> None:
    class Plain(Policy):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(()))

        def forward(self, data: Any, state: Any = None) -> Any:
            raise NotImplementedError

        def learn(self, batch: Any, **kwargs: Any) -> dict[str, float | list[float]]:
            raise NotImplementedError

    one, other = Plain(), Plain()
    with torch.no_grad():
        one.scale.fill_(7.0)
    other.load_weights(one.weights())
    assert other.scale.item() == 7.0
