"""Tianshou's own DQN, collector and trainer on CartPole-v1, over a prioritized buffer that Ray hosts.

    pip install 'replay-service[tianshou]'
    python -m examples.adapter_tianshou [--seed 0] [--threshold 195]

Everything but the buffer is Tianshou's; the exit code is 0 where a test reached the threshold.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from typing import Any

import gymnasium
import ray
import torch

try:
    from tianshou.algorithm import DQN
    from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector
    from tianshou.env import DummyVectorEnv
    from tianshou.trainer import OffPolicyTrainerParams
    from tianshou.utils.net.common import Net
except ModuleNotFoundError as missing:
    sys.exit(f"{missing}; this example needs: pip install 'replay-service[tianshou]'")

from clients.adapters import tianshou_buffer
from replay_service.episodic import PrioritizedVectorReplayBuffer

__all__ = ["main"]

ENVS, TEST_EPISODES = 8, 10


def main(arguments: list[str] | None = None) -> int:
    """Train; the exit code, 0 where a test reached the threshold."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--threshold", type=float, default=195.0)
    given = options.parse_args(arguments)
    torch.manual_seed(given.seed)
    torch.set_num_threads(1)
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    # Any: with this backend the constructor gives the owner of a hosted buffer.
    owner: Any = PrioritizedVectorReplayBuffer(
        20_000, ENVS, alpha=0.6, beta=0.4, random_seed=given.seed, service_backend="ray"
    )
    try:
        with owner, owner.client() as client:
            return train(tianshou_buffer(client), given.seed, given.threshold)
    finally:
        ray.shutdown()


def train(buffer: Any, seed: int, threshold: float) -> int:
    """Tianshou's training as its documentation has it, on `buffer`."""
    training_envs = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(ENVS)])
    test_envs = DummyVectorEnv([lambda: gymnasium.make("CartPole-v1") for _ in range(TEST_EPISODES)])
    training_envs.seed(seed)
    test_envs.seed(seed + 1000)
    observations, actions = training_envs.observation_space[0], training_envs.action_space[0]
    net = Net(state_shape=observations.shape, action_shape=int(actions.n), hidden_sizes=[128, 128])
    policy = DiscreteQLearningPolicy(model=net, action_space=actions, eps_training=0.1, eps_inference=0.0)
    algorithm = DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=1e-3),
        gamma=0.99,
        n_step_return_horizon=3,
        target_update_freq=300,
    )
    collector = Collector(algorithm, training_envs, buffer, exploration_noise=True)
    tester = Collector(algorithm, test_envs)
    collector.reset()
    tester.reset()
    collector.collect(n_step=1000)
    begun = time.monotonic()
    result = algorithm.run_training(
        OffPolicyTrainerParams(
            training_collector=collector,
            test_collector=tester,
            max_epochs=20,
            epoch_num_steps=4000,
            collection_step_num_env_steps=64,
            test_step_num_episodes=TEST_EPISODES,
            batch_size=128,
            update_step_num_gradient_steps_per_sample=0.125,
            stop_fn=lambda reward: reward >= threshold,
            show_progress=False,
        )
    )
    best, seconds = float(result.best_reward), time.monotonic() - begun
    reached = best >= threshold
    print(
        f"Tianshou's DQN on a hosted buffer {'reached' if reached else 'did not reach'} {threshold:g}: best mean return "
        f"{best:.1f} over {TEST_EPISODES} episodes, {len(buffer)} steps in the buffer, {seconds:.0f} s"
    )
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
