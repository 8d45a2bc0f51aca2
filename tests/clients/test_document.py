"""The sections on policies, collectors and trainers of the document: its snippets in its order; rows E… are of the semantics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from clients import (
    AsyncCollector,
    AsyncEnvironments,
    Collector,
    DQNPolicy,
    DummyVectorEnv,
    OfflineTrainer,
    OffpolicyTrainer,
    OnpolicyTrainer,
    Policy,
    PPOPolicy,
    offline_trainer,
    offpolicy_trainer,
    onpolicy_trainer,
)
from replay_service.episodic import Batch, PrioritizedReplayBuffer, ReplayBuffer, VectorReplayBuffer
from tests.clients.batch_policy import BatchPolicy

CART_POLE = "CartPole-v0"
QUIET = {"verbose": False, "show_progress": False}
pytestmark = pytest.mark.filterwarnings("ignore:.*CartPole-v0.*:DeprecationWarning")


class OldEnv:
    """The environment that the document assumes: `reset` gives what is seen, `step` four answers."""

    def __init__(self, seed: int = 0) -> None:
        self._env = gymnasium.make(CART_POLE)
        self._seed: int | None = seed

    def reset(self) -> Any:
        seed, self._seed = self._seed, None
        return self._env.reset(seed=seed)[0]

    def step(self, act: Any) -> tuple[Any, Any, bool, dict[str, Any]]:
        obs, rew, terminated, truncated, info = self._env.step(act)
        return obs, rew, terminated or truncated, info


@pytest.fixture
def env() -> Iterator[gymnasium.Env[Any, Any]]:
    made = gymnasium.make(CART_POLE)
    yield made
    made.close()


def ppo(env: gymnasium.Env[Any, Any]) -> PPOPolicy:
    return PPOPolicy.for_spaces(env.observation_space, env.action_space, hidden=(8,))


def dqn(env: gymnasium.Env[Any, Any], **settings: Any) -> DQNPolicy:
    return DQNPolicy.for_spaces(env.observation_space, env.action_space, hidden=(8,), **settings)


# -- Policy -----------------------------------------------------------------------------------------------------------


class Phases(BatchPolicy):
    """Notes the phases of its updates; `learn` finds the priority 3 for every step."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[tuple[str, bool, bool, int]] = []
        self.drawn: list[int] = []

    def process_fn(self, batch: Any, buffer: Any, indices: Any) -> Any:
        self.order.append(("process", self.training, self.updating, len(batch)))
        self.drawn = indices.tolist()
        return batch

    def learn(self, batch: Any, **kwargs: Any) -> Any:
        self.order.append(("learn", self.training, self.updating, len(batch)))
        batch.weight = np.full(len(batch), 3.0)
        return super().learn(batch)

    def post_process_fn(self, batch: Any, buffer: Any, indices: Any) -> None:
        assert indices.tolist() == self.drawn
        self.order.append(("post", self.training, self.updating, len(batch)))
        super().post_process_fn(batch, buffer, indices)


@pytest.mark.parametrize("training", [True, False])
def test_process_learn_and_post_process(  # E89 (outside of a trainer, as in the document), E90, E119
    training: bool,
) -> None:
    buffer = PrioritizedReplayBuffer(10, alpha=1.0, beta=1.0)
    for i in range(6):
        buffer.add(Batch(obs=i, act=i, rew=i, done=False, obs_next=i + 1))
    policy = Phases().train(training)
    assert policy.update(3, buffer) == {"loss": 1.0}
    assert policy.order == [("process", True, True, 3), ("learn", True, True, 3), ("post", True, True, 3)]
    assert (policy.training, policy.updating) == (training, False)
    expected = np.where(np.isin(np.arange(10), policy.drawn), 3.0, np.arange(10) < 6)
    assert buffer.weight == pytest.approx(expected, rel=1e-6)
    policy.update(0, buffer)
    assert policy.drawn == [0, 1, 2, 3, 4, 5]
    assert policy.update(3, None) == {}


@pytest.mark.parametrize("training", [True, False])
def test_collecting_leaves_the_state_as_it_is(training: bool, env: Any) -> None:
    policy = BatchPolicy().train(training)
    Collector(policy, env, ReplayBuffer(9)).collect(n_step=2)
    assert policy.states == [(training, False)] * 2
    assert (policy.training, policy.updating) == (training, False)


@pytest.mark.parametrize("make", [dqn, ppo, lambda _: BatchPolicy()])
def test_an_episode_without_a_collector(make: Any, env: Any) -> None:
    policy, env, steps = make(env), OldEnv(), 0
    obs, done = env.reset(), False
    while not done:
        batch = Batch(obs=[obs])  # the first dimension is batch-size
        assert batch.obs.shape == (1, 4)
        act = policy(batch).act[0]  # policy.forward return a batch, use ".act" to extract the action
        obs, _rew, done, _info = env.step(act)
        steps += 1
    assert steps > 5


class TwoSteps(Policy):
    """The document's DQN_2step; what is left out there takes 10 for the value of everything."""

    _gamma = 0.5

    def forward(self, data: Any, state: Any = None, eps: float = 0.0) -> Any:
        return torch.tensor([[3.0, 10.0]]).expand(len(data.obs), 2)

    def process_fn(self, batch: Any, buffer: Any, indices: Any) -> Any:
        buffer_len = len(buffer)
        batch_2 = buffer[(indices + 2) % buffer_len]
        assert batch_2.obs.tolist() == buffer.obs[(indices + 2) % buffer_len].tolist()
        q = self(batch_2, eps=0)  # shape: [batchsize, action_shape]
        max_q = q.max(dim=-1).values.numpy()
        batch.returns = batch.rew + self._gamma * buffer.rew[(indices + 1) % buffer_len] + self._gamma**2 * max_q
        return batch

    def learn(self, batch: Any, **kwargs: Any) -> Any:
        return {"returns": batch.returns.tolist()}

    def acting_modules(self) -> nn.Module:
        return self


def test_two_step_returns_of_a_policy() -> None:  # E83
    buffer = ReplayBuffer(10)
    for i in range(5):
        buffer.add(Batch(obs=i, act=i, rew=i + 1.0, done=i == 2, obs_next=i + 1))
    assert TwoSteps().update(0, buffer) == {"returns": [4.5, 6.0, 7.5, 9.0, 8.0]}


# -- Collector --------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*render method without specifying any render mode.*:UserWarning")
def test_collecting_as_the_document_does(env: Any) -> None:
    policy = ppo(env)
    replay_buffer = ReplayBuffer(size=10000)

    # here we set up a collector with a single environment
    collector = Collector(policy, env, buffer=replay_buffer)
    assert collector.collect(n_episode=1)["n/st"] == len(replay_buffer)

    # the collector supports vectorized environments as well
    vec_buffer = VectorReplayBuffer(total_size=10000, buffer_num=3)
    envs = DummyVectorEnv([lambda: gymnasium.make(CART_POLE) for _ in range(3)])
    collector = Collector(policy, envs, buffer=vec_buffer)

    # collect 3 episodes
    assert collector.collect(n_episode=3)["n/ep"] == 3
    # collect at least 2 steps
    assert collector.collect(n_step=2)["n/st"] == 3
    # collect episodes with visual rendering
    assert collector.collect(n_episode=1, render=0.0001)["n/ep"] == 1
    assert len(vec_buffer) == collector.collect_step
    assert collector.collect_episode == 4
    envs.close()


def test_asynchronous_environments_know_at_least_only(env: Any) -> None:
    environments = AsyncEnvironments([lambda: gymnasium.make(CART_POLE)] * 3, wait_num=2, processes=False)
    buffer = VectorReplayBuffer(total_size=10000, buffer_num=3)
    collector = AsyncCollector(ppo(env), environments, buffer)
    assert collector.collect(n_step=5)["n/st"] >= 5
    assert collector.collect(n_episode=2)["n/ep"] >= 2
    assert len(buffer) == collector.collect_step
    collector.close()


# -- Trainer ----------------------------------------------------------------------------------------------------------


def pair(policy: Policy) -> tuple[Collector, Collector]:
    """Collectors for training and for tests."""
    makers = [lambda: gymnasium.make(CART_POLE)] * 2
    return tuple(Collector(policy, DummyVectorEnv(makers), VectorReplayBuffer(400, 2), seed=1) for _ in range(2))  # type: ignore[return-value]


def onpolicy(env: Any) -> OnpolicyTrainer:
    policy = ppo(env)
    amounts = {"max_epoch": 2, "step_per_epoch": 40, "repeat_per_collect": 2, "episode_per_test": 1}
    return OnpolicyTrainer(policy, *pair(policy), batch_size=16, step_per_collect=20, **amounts, **QUIET)  # type: ignore[arg-type]


def test_iterating_over_a_trainer(env: Any, capsys: pytest.CaptureFixture[str]) -> None:
    trainer, epochs = onpolicy(env), []
    for epoch, epoch_stat, info in trainer:
        print(f"Epoch: {epoch}")
        print(epoch_stat)
        print(info)
        epochs.append((epoch, epoch_stat["env_step"], info["train_step"]))
    assert epochs == [(1, 40, 40), (2, 80, 80)]
    assert capsys.readouterr().out.count("'test_reward':") == 2


def test_iterating_over_several_trainers_at_the_same_time(env: Any) -> None:
    trainer1, trainer2 = onpolicy(env), onpolicy(env)
    compared = 0
    for result1, result2 in zip(trainer1, trainer2, strict=True):
        # Same seeds, and neither draws from what the other does.
        assert result1[:2] == result2[:2]
        compared += 1
    assert compared == 2


def test_three_kinds_of_trainers(env: Any) -> None:
    policy = ppo(env)
    common: dict[str, Any] = {"max_epoch": 1, "episode_per_test": 1, "batch_size": 8, **QUIET}
    collects = {"step_per_epoch": 20, "step_per_collect": 10, **common}
    assert onpolicy_trainer(policy, *pair(policy), repeat_per_collect=1, **collects)["train_step"] == 20
    learner = dqn(env)
    train, test = pair(learner)
    assert offpolicy_trainer(learner, train, test, update_per_step=0.1, **collects)["train_step"] == 20
    assert offline_trainer(learner, train.buffer, test, update_per_epoch=3, **common)["test_episode"] == 2
    stats = [
        next(OffpolicyTrainer(learner, train, test, update_per_step=0.1, **collects))[1],
        next(OfflineTrainer(learner, train.buffer, test, update_per_epoch=3, **common))[1],
    ]
    assert [stat["gradient_step"] for stat in stats] == [2, 3]


# -- A high-level explanation -----------------------------------------------------------------------------------------


def test_the_loop_that_a_trainer_wraps(env: Any) -> None:
    agent = dqn(env, n_step=2)
    env = OldEnv()
    obs, losses = env.reset(), []
    buffer = ReplayBuffer(size=10000)
    for i in range(1, 61):
        act = int(agent(Batch(obs=[obs], info={})).act[0])
        obs_next, rew, done, _ = env.step(act)
        buffer.add(Batch(obs=obs, act=act, obs_next=obs_next, rew=rew, done=done))
        obs = env.reset() if done else obs_next
        if i % 20 == 0:
            batch, indices = buffer.sample(16)
            batch = agent.process_fn(batch, buffer, indices)
            assert batch.returns.shape == (16,)
            losses.append(agent.learn(batch)["loss"])
    assert np.isfinite(losses).all()
    assert len(buffer) == 60
