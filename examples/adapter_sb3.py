"""Stable-Baselines3's own DQN on CartPole-v1, or SAC on Pendulum-v1, over a buffer that Ray hosts.

    pip install 'replay-service[sb3]'
    python -m examples.adapter_sb3 [--algorithm dqn|sac] [--seed 0]

Everything but the buffer is Stable-Baselines3's; the exit code is 0 where the trained policy reaches the threshold.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from functools import partial
from typing import Any

import ray
import torch

try:
    from stable_baselines3 import DQN, SAC
    from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
except ModuleNotFoundError as missing:
    sys.exit(f"{missing}; this example needs: pip install 'replay-service[sb3]'")

from clients import ReplayClient
from clients.adapters import SB3ReplayBuffer
from replay_service import LazyTensorStorage, TensorDictReplayBuffer

__all__ = ["main"]

CAPACITY = 50_000
TEST_EPISODES = 10


def main(arguments: list[str] | None = None) -> int:
    """Train; the exit code, 0 where the trained policy reaches the threshold."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--algorithm", choices=["dqn", "sac"], default="dqn")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args(arguments)
    torch.set_num_threads(1)
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    # Any: with this backend the constructor gives the owner of a hosted buffer.
    owner: Any = TensorDictReplayBuffer(
        storage=partial(LazyTensorStorage, CAPACITY),
        generator=torch.Generator().manual_seed(given.seed),
        service_backend="ray",
    )
    try:
        with owner, owner.client() as client:
            return dqn(client, given.seed) if given.algorithm == "dqn" else sac(client, given.seed)
    finally:
        ray.shutdown()


def dqn(client: ReplayClient, seed: int) -> int:
    """SB3's DQN with the settings of its zoo, but four environments, on the hosted buffer."""
    model = DQN(
        "MlpPolicy",
        make_vec_env("CartPole-v1", n_envs=4, seed=seed),
        learning_rate=2.3e-3,
        buffer_size=CAPACITY,
        learning_starts=1000,
        batch_size=64,
        train_freq=64,
        gradient_steps=128,
        target_update_interval=10,
        exploration_fraction=0.16,
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [256, 256]},
        replay_buffer_class=SB3ReplayBuffer,  # type: ignore[arg-type]
        replay_buffer_kwargs={"client": client},
        seed=seed,
    )
    return trained(model, "CartPole-v1", steps=50_000, threshold=195.0)


def sac(client: ReplayClient, seed: int) -> int:
    """SB3's SAC with its own defaults, on the hosted buffer."""
    model = SAC(
        "MlpPolicy",
        make_vec_env("Pendulum-v1", n_envs=4, seed=seed),
        buffer_size=CAPACITY,
        learning_starts=500,
        train_freq=1,
        gradient_steps=2,
        policy_kwargs={"net_arch": [64, 64]},
        replay_buffer_class=SB3ReplayBuffer,  # type: ignore[arg-type]
        replay_buffer_kwargs={"client": client},
        seed=seed,
    )
    return trained(model, "Pendulum-v1", steps=20_000, threshold=-250.0)


def trained(model: Any, env: str, steps: int, threshold: float) -> int:
    """Learn until a test reaches the threshold, or for `steps`; then prove it."""
    begun = time.monotonic()
    tester = make_vec_env(env, n_envs=TEST_EPISODES, seed=1000)
    enough = StopTrainingOnRewardThreshold(threshold)
    model.learn(
        steps,
        callback=EvalCallback(
            tester, callback_on_new_best=enough, n_eval_episodes=TEST_EPISODES, eval_freq=1000, verbose=0
        ),
    )
    score, _ = evaluate_policy(model, tester, n_eval_episodes=TEST_EPISODES)
    reached = score >= threshold
    print(
        f"Stable-Baselines3's {type(model).__name__} on a hosted buffer {'reached' if reached else 'did not reach'} "
        f"{threshold:g}: mean return {score:.1f} over {TEST_EPISODES} episodes, {model.num_timesteps} env steps, "
        f"{model.replay_buffer.size()} steps in the buffer, {time.monotonic() - begun:.0f} s"
    )
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
