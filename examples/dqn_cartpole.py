"""Double DQN with prioritized 3-step replay, from a buffer that Ray hosts, solves CartPole-v1.

    python -m examples.dqn_cartpole [--seed 0] [--minutes 10] [--runs runs]

Draws by priority and 3-step returns are made in the buffer's own process and come with the sample, in one reply.
"""

from __future__ import annotations

import sys
from typing import Any

from clients.collector import Collector
from clients.environments import make_environments
from clients.policies.dqn import DQNPolicy, EpsilonSchedule
from clients.trainers import OffpolicyTrainer
from examples.solving import TEST_EPISODES, Task, parsed
from replay_service.episodic import PrioritizedVectorReplayBuffer

__all__ = ["main"]

ENVS = 8
EXPLORATION = EpsilonSchedule(start=1.0, end=0.05, steps=10_000)


def main(arguments: list[str] | None = None) -> int:
    """Run the training; the exit code, 0 if solved."""
    title = "CartPole-v1: double DQN, prioritized 3-step replay on Ray"
    task = Task("CartPole-v1", 475.0, title, **parsed(__doc__, arguments))
    policy = DQNPolicy.for_spaces(*task.spaces(), n_step=3, seed=task.seed)
    # Any: with this backend the constructor gives the owner of a hosted buffer.
    with task.ray():
        hosted: Any = PrioritizedVectorReplayBuffer(
            50_000, ENVS, alpha=0.6, beta=0.4, random_seed=task.seed, service_backend="ray"
        )
        with hosted, hosted.client() as buffer:
            collector = Collector(policy, make_environments(task.env, ENVS), buffer, seed=task.seed)
            collector.collect(n_step=1000, random=True)

            def explore(epoch: int, env_step: int) -> None:
                policy.epsilon = EXPLORATION(env_step)

            trainer = OffpolicyTrainer(
                policy,
                collector,
                task.tester(policy),
                max_epoch=1000,
                step_per_epoch=4096,
                step_per_collect=64,
                episode_per_test=TEST_EPISODES,
                batch_size=128,
                update_per_step=1 / 8,
                train_fn=explore,
                test_in_train=False,
                logger=task.points,
            )
            return task.solve(trainer)


if __name__ == "__main__":
    sys.exit(main())
