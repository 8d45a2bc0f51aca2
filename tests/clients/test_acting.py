"""What is told to environments and what is stored of it; rows E… are those of the semantics table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from clients.collector import Collector
from replay_service.episodic import ReplayBuffer, VectorReplayBuffer
from replay_service.episodic.batch import Batch
from tests.clients.batch_policy import BatchPolicy, RecurrentPolicy
from tests.clients.counting import StepEnv
from tests.clients.test_collector_episodic import envs


class Noisy(BatchPolicy):
    def exploration_noise(self, act: Any, batch: Any) -> Any:
        return act * 0


def test_what_is_stored_is_the_action_with_its_noise() -> None:  # E101
    buffer = ReplayBuffer(size=10)
    noisy = Noisy(choice=2)
    collector = Collector(noisy, StepEnv(9), buffer, exploration_noise=True)
    collector.collect(n_step=2)
    assert buffer[:].act.tolist() == [0, 0]
    calls = noisy.calls
    collector.collect(n_step=3, random=True)
    assert noisy.calls == calls
    # Without the switch, actions are those of the policy.
    collector = Collector(noisy, StepEnv(9), buffer)
    collector.collect(n_step=2)
    assert buffer[:].act[-2:].tolist() == [2, 2]


def test_random_steps_have_nothing_from_the_policy() -> None:
    buffer = VectorReplayBuffer(40, 2)
    collector = Collector(RecurrentPolicy(), envs(9, 9), buffer)
    collector.collect(n_step=4, random=True)
    assert buffer[:].policy.is_empty()
    collector.collect(n_step=2)
    collector.collect(n_step=2, random=True)
    assert buffer[:].policy.seen.tolist() == [0, 0, 1, 0] * 2


class Pushed(StepEnv):
    """Notes the actions it gets."""

    action_space = spaces.Box(-2, 2, (1,), np.float32)  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__(99)
        self.told: list[float] = []

    def step(self, action: Any) -> Any:
        self.told.append(float(action[0]))
        return super().step(0)


class Fixed(BatchPolicy):
    """Takes the actions it is made with, one after the other."""

    def __init__(self, *actions: float) -> None:
        super().__init__(action_space=Pushed.action_space)
        self.actions = list(actions)

    def forward(self, data: Any, state: Any = None) -> Any:
        return Batch(act=np.array([[self.actions.pop(0)]], np.float32))


def test_actions_are_mapped_for_the_environment_only() -> None:  # E102
    buffer, env = ReplayBuffer(size=10), Pushed()
    collector = Collector(Fixed(0.5, 3.0), env, buffer, seed=0)
    collector.collect(n_step=2)
    assert env.told == [1.0, 2.0]
    assert buffer[:].act[:, 0].tolist() == [0.5, 3.0]
    collector.collect(n_step=3, random=True)
    assert env.told[2:] == pytest.approx((2 * buffer[:].act[2:, 0]).tolist())
    assert len(set(env.told[2:])) == 3


def test_state_of_the_policy_begins_anew_with_each_episode() -> None:
    buffer = VectorReplayBuffer(40, 2)
    collector = Collector(RecurrentPolicy(), envs(2, 3), buffer)
    collector.collect(n_step=10)
    assert buffer[:].policy.seen.tolist() == [1, 2, 1, 2, 1, 1, 2, 3, 1, 2]
    assert buffer[:].policy.hidden_state.count[:, 0].tolist() == [1, 2, 1, 2, 1, 1, 2, 3, 1, 2]
    collector.reset()
    collector.collect(n_step=2)
    assert buffer[:].policy.seen.tolist() == [1, 1]


class Telling(StepEnv):
    """Tells numbers beside its observation, one of them only at the end."""

    def step(self, action: int) -> Any:
        shown, reward, terminated, truncated, _ = super().step(action)
        info: dict[str, Any] = {"steps": self._steps, "inner": {"half": self._steps / 2}, "name": "text"}
        return shown, reward, terminated, truncated, info | ({"last": 1} if terminated else {})


def test_info_that_the_first_step_shows_is_stored() -> None:
    buffer = ReplayBuffer(size=10)
    Collector(BatchPolicy(), Telling(2), buffer).collect(n_step=4)
    assert buffer[:].info.steps.tolist() == [1, 2, 1, 2]
    assert buffer[:].info.inner.half.tolist() == [0.5, 1.0, 0.5, 1.0]
    assert set(buffer[:].info.keys()) == {"steps", "inner"}
