"""Policies learn through a handle what they learn from the buffer itself, and with as few questions."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from clients.episodic_handle import EpisodicClient
from clients.learner import Learner
from clients.policies import DQNPolicy, PPOPolicy, SACPolicy
from clients.policy import Policy
from replay_service.episodic import PrioritizedReplayBuffer, ReplayBuffer
from replay_service.episodic.batch import Batch
from replay_service.episodic.facts import StepFacts
from replay_service.service.step_dispatch import StepDispatch
from replay_service.wire.inproc import InprocChannel
from replay_service.wire.message import Message
from replay_service.wire.verbs import Verb
from tests.clients.adapters.near import ADDRESS

OBSERVATIONS, DISCRETE = spaces.Box(-100, 100, (1,)), spaces.Discrete(2)
CONTINUOUS = spaces.Box(-1, 1, (1,))


def filled(buffer: ReplayBuffer, *, continuous: bool = False) -> ReplayBuffer:
    rng = np.random.default_rng(0)
    for step in range(40):
        act: Any = rng.uniform(-1, 1, 1).astype(np.float32) if continuous else int(rng.integers(2))
        ends = step % 7 == 6
        observed = [np.array([step + k], dtype=np.float32) for k in (0, 1)]
        buffer.add(
            Batch(
                obs=observed[0],
                act=act,
                rew=float(rng.normal()),
                terminated=ends and step % 2 == 0,
                truncated=ends and step % 2 == 1,
                obs_next=observed[1],
            )
        )
    return buffer


class Noting(InprocChannel):
    """Notes the verbs that go through it."""

    def __init__(self, serve: Any) -> None:
        super().__init__(serve)
        self.asked: list[Verb] = []

    def submit(self, request: Message, timeout_s: float) -> Any:
        self.asked.append(request.verb)
        return super().submit(request, timeout_s)


def counted(buffer: ReplayBuffer) -> tuple[EpisodicClient, list[Verb]]:
    """A handle, and the verbs that have gone through it."""
    dispatch = StepDispatch(buffer)
    channel = Noting(dispatch.serve)
    return EpisodicClient(ADDRESS, StepFacts(**dispatch.describe()["steps"]), channel), channel.asked


def dqn() -> Policy:
    return DQNPolicy.for_spaces(OBSERVATIONS, DISCRETE, n_step=3, hidden=(8,), seed=1)


def sac() -> Policy:
    return SACPolicy.for_spaces(OBSERVATIONS, CONTINUOUS, n_step=2, hidden=(8,), seed=1)


def ppo() -> Policy:
    return PPOPolicy.for_spaces(OBSERVATIONS, DISCRETE, hidden=(8,), seed=1)


def same_weights(one: Policy, other: Policy) -> bool:
    return all(value.equal(other.weights()[name]) for name, value in one.weights().items())


@pytest.mark.parametrize(("make", "continuous"), [(dqn, False), (sac, True)])
def test_off_policy(make: Any, continuous: bool) -> None:
    near, far = (filled(PrioritizedReplayBuffer(50, 0.6, 0.4), continuous=continuous) for _ in range(2))
    here, there, fresh = make(), make(), make()
    handle, asked = counted(far)
    with handle:
        for _ in range(5):
            losses = here.update(16, near), there.update(16, handle)
            assert losses[0] == losses[1]
    assert same_weights(here, there)
    assert not same_weights(here, fresh)
    assert [verb for verb in asked if verb is not Verb.CLOSE] == [Verb.SAMPLE_STEPS, Verb.UPDATE_WEIGHT] * 5
    assert np.array_equal(near.get_weight(np.arange(40)), far.get_weight(np.arange(40)))


def test_off_policy_with_batches_asked_for_ahead() -> None:
    handle, asked = counted(filled(PrioritizedReplayBuffer(50, 0.6, 0.4)))
    with handle:
        learner = Learner(dqn(), handle, batch_size=16, prefetch=2)
        for _ in range(4):
            assert set(learner.step()) == {"loss", "value"}
        learner.close()
    assert asked.count(Verb.UPDATE_WEIGHT) == 4
    assert Verb.COLUMN not in asked


def test_on_policy() -> None:
    near, far = (filled(ReplayBuffer(50)) for _ in range(2))
    here, there = ppo(), ppo()
    handle, asked = counted(far)
    with handle:
        for _ in range(2):
            losses = [
                policy.update(0, buffer, batch_size=8, repeat=2) for policy, buffer in ((here, near), (there, handle))
            ]
            assert losses[0] == losses[1]
    assert same_weights(here, there)
    assert [verb for verb in asked if verb is not Verb.CLOSE] == [Verb.SAMPLE_STEPS, Verb.EPISODIC_RETURN] * 2


def test_the_documents_way_to_evaluate_one_episode() -> None:
    env = gymnasium.make("CartPole-v1")
    policy = DQNPolicy.for_spaces(env.observation_space, env.action_space, hidden=(8,)).eval()
    (obs, _), done, steps = env.reset(seed=0), False, 0
    while not done:
        batch = Batch(obs=[obs])  # the first dimension is batch-size
        act = policy(batch).act[0]  # policy.forward return a batch, use ".act" to extract the action
        obs, _, terminated, truncated, _ = env.step(act)
        done, steps = terminated or truncated, steps + 1
    env.close()
    assert steps > 5


def test_nested_observations_reach_a_network_of_the_users_own() -> None:
    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 2)

        def forward(self, observation: Any) -> torch.Tensor:
            return self.layer(torch.cat([observation["x"], observation["y"]], -1).float())

    buffer = ReplayBuffer(10)
    for step in range(4):
        seen = {"x": np.ones(1, np.float32) * step, "y": np.zeros(2, np.float32)}
        buffer.add(Batch(obs=seen, act=0, rew=1.0, terminated=False, truncated=False, obs_next=seen))
    policy = DQNPolicy(Both(), n_step=2)
    assert np.isfinite(policy.update(4, buffer)["loss"])
    assert policy(Batch(obs={"x": [[1.0]], "y": [[0.0, 0.0]]})).act.shape == (1,)
