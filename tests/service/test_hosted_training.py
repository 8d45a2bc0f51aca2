"""A whole training on a hosted buffer repeats itself, whichever way the steps travel."""

from __future__ import annotations

from functools import partial

import gymnasium
import torch
from torch import Tensor

from clients.collector import Collector
from clients.environments import make_environments
from clients.policies.dqn import DQNPolicy
from clients.trainers import OffpolicyTrainer
from replay_service.episodic import PrioritizedVectorReplayBuffer
from tests.wire.serving import House

ENVS = 2


def trained(house: House, transport: str) -> tuple[dict[str, Tensor], list[float]]:
    """Weights after a short training with all seeds given, and its losses; batches are asked for ahead."""
    recipe = partial(PrioritizedVectorReplayBuffer, 200, ENVS, alpha=0.6, beta=0.4, random_seed=3)
    one = gymnasium.make("CartPole-v1")
    policy = DQNPolicy.for_spaces(one.observation_space, one.action_space, n_step=3, hidden=(8,), seed=3)
    policy.epsilon = 0.3
    losses = []
    with house.host_steps(recipe, transport).client() as buffer:
        collector = Collector(policy, make_environments("CartPole-v1", ENVS), buffer, exploration_noise=True, seed=3)
        trainer = OffpolicyTrainer(
            policy, collector, None, 2, 256, 32, None, 16, 0.25, show_progress=False, verbose=False
        )
        for _, stat, _ in trainer:
            losses.append(float(stat["loss"]))
        trainer.close()
        collector.close()
    return policy.weights(), losses


def test_a_seed_repeats_a_training_to_the_last_digit(guest_house: House) -> None:
    runs = [trained(guest_house, transport) for transport in ("auto", "auto", "ray")]
    weights, losses = runs[0]
    assert len(losses) == 2
    for other, other_losses in runs[1:]:
        assert other_losses == losses
        assert all(torch.equal(weights[key], other[key]) for key in weights)
