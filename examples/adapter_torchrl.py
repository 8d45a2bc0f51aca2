"""TorchRL's own collector and DQN loss on CartPole-v1, over a prioritized buffer that Ray hosts.

    pip install 'replay-service[torchrl]'
    python -m examples.adapter_torchrl [--seed 0] [--threshold 195]

Everything but the buffer is TorchRL's; the exit code is 0 where a test reached the threshold.
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
from tensordict.nn import TensorDictSequential

try:
    from torchrl.collectors import Collector
    from torchrl.envs import GymEnv, RewardSum, StepCounter, TransformedEnv
    from torchrl.envs.utils import ExplorationType, set_exploration_type
    from torchrl.modules import MLP, EGreedyModule, QValueActor
    from torchrl.objectives import DQNLoss, SoftUpdate
except ModuleNotFoundError as missing:
    sys.exit(f"{missing}; this example needs: pip install 'replay-service[torchrl]'")

from clients.adapters import TorchRLBuffer
from replay_service import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

__all__ = ["main"]

FRAMES_PER_BATCH, UPDATES_PER_BATCH = 64, 8
TOTAL_FRAMES, FRAMES_PER_TEST, TEST_EPISODES = 64_000, 3840, 10


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
    owner: Any = TensorDictPrioritizedReplayBuffer(
        alpha=0.3,  # of squared errors, as TorchRL's loss gives them: 0.6 of the errors
        beta=0.4,
        eps=1e-3,
        storage=partial(LazyTensorStorage, 20_000),
        batch_size=128,
        service_backend="ray",
    )
    try:
        with owner, owner.client() as client:
            return train(TorchRLBuffer(client), given.seed, given.threshold)
    finally:
        ray.shutdown()


def train(buffer: TorchRLBuffer, seed: int, threshold: float) -> int:
    """A loop as TorchRL's tutorials have it, on `buffer`."""
    env = TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=True), StepCounter())
    env.set_seed(seed)
    test_env = TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=True), RewardSum())
    test_env.set_seed(seed + 1000)
    net = MLP(in_features=4, out_features=2, num_cells=[128, 128])
    actor = QValueActor(net, in_keys=["observation"], spec=env.action_spec)
    explore = EGreedyModule(env.action_spec, eps_init=1.0, eps_end=0.05, annealing_num_steps=8000)
    loss = DQNLoss(actor, action_space="categorical", loss_function="smooth_l1", delay_value=True, double_dqn=True)
    loss.make_value_estimator(gamma=0.99)
    target = SoftUpdate(loss, eps=0.97)
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    collector = Collector(
        env,
        TensorDictSequential(actor, explore),
        frames_per_batch=FRAMES_PER_BATCH,
        total_frames=TOTAL_FRAMES,
        auto_register_policy_transforms=False,
        replay_buffer=buffer,
    )
    begun, frames, best = time.monotonic(), 0, 0.0
    for _ in collector:
        frames += FRAMES_PER_BATCH
        explore.step(FRAMES_PER_BATCH)
        if frames <= 1000:
            continue
        for _ in range(UPDATES_PER_BATCH):
            batch = buffer.sample()
            loss(batch)["loss"].backward()  # weighted by "priority_weight", which came with the sample
            optimizer.step()
            optimizer.zero_grad()
            target.step()
            buffer.update_tensordict_priority(batch)
        if frames % FRAMES_PER_TEST == 0:
            score = tested(test_env, actor)
            best = max(best, score)
            print(f"{frames} frames: mean return {score:.1f}", flush=True)
            if score >= threshold:
                break
    collector.shutdown()
    reached = best >= threshold
    print(
        f"TorchRL's DQN on a hosted buffer {'reached' if reached else 'did not reach'} {threshold:g}: best mean return "
        f"{best:.1f} over {TEST_EPISODES} episodes, {len(buffer)} steps in the buffer, {time.monotonic() - begun:.0f} s"
    )
    return 0 if reached else 1


@torch.no_grad()
def tested(env: TransformedEnv, actor: QValueActor) -> float:
    """Mean return of greedy episodes."""
    with set_exploration_type(ExplorationType.DETERMINISTIC):
        returns = [env.rollout(500, actor)["next", "episode_reward"][-1].item() for _ in range(TEST_EPISODES)]
    return sum(returns) / len(returns)


if __name__ == "__main__":
    sys.exit(main())
