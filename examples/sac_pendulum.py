"""SAC, from a buffer that Ray hosts, swings the pendulum of Pendulum-v1 up: a mean return above -200.

python -m examples.sac_pendulum [--seed 0] [--minutes 10] [--runs runs]
"""

from __future__ import annotations

import sys
from typing import Any

from clients.collector import Collector
from clients.environments import make_environments
from clients.policies.sac import SACPolicy
from clients.trainers import OffpolicyTrainer
from examples.solving import TEST_EPISODES, Task, parsed
from replay_service.episodic import VectorReplayBuffer

__all__ = ["main"]

ENVS = 4


def main(arguments: list[str] | None = None) -> int:
    """Run the training; the exit code, 0 if solved."""
    title = "Pendulum-v1: SAC, replay on Ray"
    task = Task("Pendulum-v1", -200.0, title, **parsed(__doc__, arguments))
    policy = SACPolicy.for_spaces(
        *task.spaces(),
        hidden=(64, 64),
        seed=task.seed,
        actor_learning_rate=1e-3,
        critic_learning_rate=1e-3,
        temperature_learning_rate=1e-3,
    )
    with task.ray():
        # Any: with this backend the constructor gives the owner of a hosted buffer.
        hosted: Any = VectorReplayBuffer(50_000, ENVS, random_seed=task.seed, service_backend="ray")
        with hosted, hosted.client() as buffer:
            collector = Collector(policy, make_environments(task.env, ENVS), buffer, seed=task.seed)
            collector.collect(n_step=1000, random=True)
            trainer = OffpolicyTrainer(
                policy,
                collector,
                task.tester(policy),
                max_epoch=1000,
                step_per_epoch=1000,
                step_per_collect=32,
                episode_per_test=TEST_EPISODES,
                batch_size=128,
                update_per_step=0.5,
                test_in_train=False,
                logger=task.points,
            )
            return task.solve(trainer)


if __name__ == "__main__":
    sys.exit(main())
