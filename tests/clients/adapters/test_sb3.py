"""The calls that Stable-Baselines3's off-policy algorithms make of a buffer; the library itself isn't needed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gymnasium import spaces

from clients.adapters import SB3ReplayBuffer
from replay_service import LazyTensorStorage, TensorDictReplayBuffer
from tests.clients.adapters.near import rows_handle

OBSERVATION = spaces.Box(-9, 9, (3,), np.float32)


class Samples(NamedTuple):
    """As SB3's, by names."""

    observations: Any
    actions: Any
    next_observations: Any
    dones: Any
    rewards: Any


def made(owner: Any, n_envs: int = 2, action_space: Any = None) -> SB3ReplayBuffer:
    action_space = spaces.Discrete(4) if action_space is None else action_space
    return SB3ReplayBuffer(100, OBSERVATION, action_space, "auto", n_envs, client=rows_handle(owner), samples=Samples)


def local(capacity: int = 100) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), generator=torch.Generator().manual_seed(0))


def add(buffer: SB3ReplayBuffer, number: int, done: tuple[bool, bool] = (False, False), by_clock: bool = False) -> None:
    obs = np.full((2, 3), number, np.float32) + np.array([[0], [100]], np.float32)
    infos = [{"TimeLimit.truncated": by_clock}, {}]
    buffer.add(obs, obs + 1, np.array([[number], [number]]), np.array([1.0, 2.0]), np.array(done), infos)
    obs[:] = -1  # SB3 writes over what it gave


def test_steps_of_all_environments_become_rows() -> None:
    owner = local()
    buffer = made(owner)
    add(buffer, 0)
    add(buffer, 1, done=(True, True), by_clock=True)
    assert buffer.size() == 4
    rows = owner[:]
    assert rows["observation"][:, 0].tolist() == [0, 100, 1, 101]
    assert rows["next", "observation"][:, 0].tolist() == [1, 101, 2, 102]
    assert rows["action"].tolist() == [[0], [0], [1], [1]]
    assert rows["next", "reward"].flatten().tolist() == [1, 2, 1, 2]
    assert rows["next", "done"].flatten().tolist() == [False, False, True, True]
    assert rows["next", "terminated"].flatten().tolist() == [False, False, False, True]
    assert rows["next", "truncated"].flatten().tolist() == [False, False, True, False]
    assert rows["next", "done"].shape == (4, 1)


def test_samples_are_what_algorithms_expect() -> None:
    buffer = made(local())
    for number in range(5):
        add(buffer, number, done=(number == 4, False), by_clock=True)
    samples = buffer.sample(64)
    assert (samples.observations.shape, samples.observations.dtype) == ((64, 3), torch.float32)
    assert (samples.actions.shape, samples.actions.dtype) == ((64, 1), torch.int64)
    assert (samples.dones.shape, samples.dones.dtype) == ((64, 1), torch.float32)
    assert (samples.rewards.shape, samples.rewards.dtype) == ((64, 1), torch.float32)
    assert torch.equal(samples.next_observations, samples.observations + 1)
    # Only the clock ended an episode: the future is still worth something.
    assert not samples.dones.any()


class Normalising:
    """Halves observations and rewards, as a VecNormalize might."""

    def normalize_obs(self, obs: Any) -> Any:
        return {name: part / 2 for name, part in obs.items()} if isinstance(obs, dict) else obs / 2

    def normalize_reward(self, reward: np.ndarray) -> np.ndarray:
        return reward / 2


def test_normalised_where_the_environment_is() -> None:
    buffer = made(local())
    add(buffer, 6)
    samples = buffer.sample(8, env=Normalising())
    assert set(samples.observations.flatten().tolist()) == {3.0, 53.0}
    assert set(samples.rewards.flatten().tolist()) == {0.5, 1.0}


def test_observations_of_several_parts() -> None:
    owner = local()
    space = spaces.Dict({"a": OBSERVATION, "b": spaces.Discrete(3)})
    buffer = SB3ReplayBuffer(100, space, spaces.Box(-1, 1, (2,)), client=rows_handle(owner), samples=Samples)
    obs = {"a": np.ones((1, 3), np.float32), "b": np.array([[2]])}
    buffer.add(obs, obs, np.zeros((1, 2), np.float32), np.array([1.0]), np.array([False]), [{}])
    samples = buffer.sample(4, env=Normalising())
    assert samples.observations["a"].tolist() == [[0.5] * 3] * 4
    assert samples.observations["b"].tolist() == [[1.0]] * 4
    assert buffer.sample(4).next_observations["b"].tolist() == [[2]] * 4
    assert samples.actions.shape == (4, 2)


def test_it_is_full_when_the_service_has_as_much() -> None:
    buffer = SB3ReplayBuffer(4, OBSERVATION, spaces.Discrete(2), client=rows_handle(local(4)), samples=Samples)
    assert not buffer.full
    for number in range(2):
        add(buffer, number)
    assert buffer.full


def test_it_pickles_as_its_handle() -> None:
    buffer = made(local())
    again, arguments = buffer.__reduce__()
    copy = again(*arguments)
    assert (copy.client, copy.n_envs, copy.buffer_size) == (buffer.client, 2, 100)


def test_what_the_service_decides_is_refused() -> None:
    with pytest.raises(ValueError, match=r"optimize_memory_usage \(True\) must be False"):
        SB3ReplayBuffer(9, OBSERVATION, OBSERVATION, optimize_memory_usage=True, client=rows_handle(local()))
