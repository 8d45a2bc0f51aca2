"""PPO with the on-policy trainer, from a buffer that Ray hosts, solves CartPole-v1.

    python -m examples.ppo_cartpole [--seed 0] [--minutes 10] [--runs runs]

Advantages are estimated in the buffer's own process, from the values that the learner sends.
"""

from __future__ import annotations

import sys
from typing import Any

from clients.collector import Collector
from clients.environments import make_environments
from clients.policies.ppo import PPOPolicy
from clients.trainers import OnpolicyTrainer
from examples.solving import TEST_EPISODES, Task, parsed
from replay_service.episodic import VectorReplayBuffer

__all__ = ["main"]

ENVS = 8
STEPS_PER_COLLECT = 2048


def main(arguments: list[str] | None = None) -> int:
    """Run the training; the exit code, 0 if solved."""
    title = "CartPole-v1: PPO, rollouts on Ray"
    task = Task("CartPole-v1", 475.0, title, **parsed(__doc__, arguments))
    policy = PPOPolicy.for_spaces(*task.spaces(), learning_rate=1e-3, seed=task.seed)
    with task.ray():
        # Any: with this backend the constructor gives the owner of a hosted buffer.
        hosted: Any = VectorReplayBuffer(STEPS_PER_COLLECT, ENVS, service_backend="ray")
        with hosted, hosted.client() as buffer:
            trainer = OnpolicyTrainer(
                policy,
                Collector(policy, make_environments(task.env, ENVS), buffer, seed=task.seed),
                task.tester(policy),
                max_epoch=1000,
                step_per_epoch=STEPS_PER_COLLECT,
                step_per_collect=STEPS_PER_COLLECT,
                episode_per_test=TEST_EPISODES,
                batch_size=256,
                repeat_per_collect=10,
                test_in_train=False,
                logger=task.points,
            )
            return task.solve(trainer)


if __name__ == "__main__":
    sys.exit(main())
