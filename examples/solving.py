"""What the learning examples have in common: options, Ray, the proof on unseen episodes, and what a run leaves behind."""

from __future__ import annotations

import argparse
import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import ray
import torch

from clients.collect_stats import CollectStats
from clients.collector import Collector
from clients.environments import make_environments
from clients.policy import Policy
from clients.trainers.loggers import TrainingLogger
from clients.trainers.trainer import Trainer
from deploy.curves import LearningCurve, RunFolder

__all__ = ["TEST_EPISODES", "CurvePoints", "Task", "parsed"]

OBJECT_STORE_BYTES = 200_000_000
UNSEEN_SEEDS = 2_000_000_000  # far from the seeds of collecting and testing
TEST_EPISODES = 20
EPISODES_IN_MEAN = 50


class CurvePoints(TrainingLogger):
    """Gathers the learning curve while a trainer runs that has it for its logger."""

    def __init__(self) -> None:
        self.collected: list[tuple[int, float]] = []
        self.tested: list[tuple[int, float]] = []
        self._returns: deque[float] = deque(maxlen=EPISODES_IN_MEAN)

    def log_train(self, stats: CollectStats, env_step: int) -> None:
        """Note the mean return of the last episodes, those of `stats` among them."""
        if stats.n_collected_episodes:
            self._returns.extend(stats.returns.tolist())
            self.collected.append((env_step, sum(self._returns) / len(self._returns)))

    def log_test(self, stats: CollectStats, env_step: int) -> None:
        """Note the mean return of a test."""
        self.tested.append((env_step, float(stats.returns.mean())))


@dataclass(frozen=True)
class Task:
    """One environment to be solved.

    env: Gymnasium id. threshold: the mean return that counts as solved. title: of the learning curve. seed: of everything.
    minutes: give up after so many. runs: folder in which the run gets a folder. points: the logger of its trainer.
    """

    env: str
    threshold: float
    title: str
    seed: int = 0
    minutes: float = 10.0
    runs: Path = Path("runs")
    points: CurvePoints = field(default_factory=CurvePoints)

    def spaces(self) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        """(observation space, action space) of one environment."""
        one = gymnasium.make(self.env)
        one.close()
        return one.observation_space, one.action_space

    def tester(self, policy: Policy) -> Collector:
        """A collector for tests of `TEST_EPISODES` episodes, each in an environment of its own, from seeds of their own."""
        collector = Collector(policy, make_environments(self.env, TEST_EPISODES))
        collector.reset(seed=1_000_000_000 + self.seed)
        return collector

    @contextmanager
    def ray(self) -> Iterator[None]:
        """Ray in this process's own embedded cluster, and one thread for torch: the other core is the buffer's."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        ray.init(
            address="local",
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        try:
            yield
        finally:
            ray.shutdown()
            torch.set_num_threads(threads)

    def solve(self, trainer: Trainer) -> int:
        """Train until tests and then unseen episodes reach the threshold, or time is up; the exit code, 0 if solved.

        Writes `metrics.jsonl`, `learning_curve.png` and `policy.pt` into the run's folder.
        """
        begun_s = time.monotonic()
        proven: float | None = None
        with RunFolder(self.runs) as folder:
            for epoch, stat, _ in trainer:
                elapsed_s = round(time.monotonic() - begun_s, 1)
                folder.record("epoch", epoch=epoch, elapsed_s=elapsed_s, **stat)
                if stat["test_reward"] >= self.threshold:
                    proven = self._proof(trainer.policy, epoch)
                    folder.record("proof", epoch=epoch, unseen_return=proven)
                    if proven >= self.threshold:
                        break
                if elapsed_s > self.minutes * 60:
                    break
            trainer.close()
            curve = LearningCurve(self.title, self.threshold, self.points.collected, self.points.tested)
            curve.draw(folder.path / "learning_curve.png")
            torch.save(trainer.policy.weights(), folder.path / "policy.pt")
        solved = proven is not None and proven >= self.threshold
        print(
            f"{'Solved' if solved else 'Not solved'}: {self.env}, mean return "
            f"{'none proven' if proven is None else f'{proven:.1f}'} over {TEST_EPISODES} unseen episodes "
            f"(needs {self.threshold:g}), {time.monotonic() - begun_s:.0f} s. Written: {folder.path}"
        )
        return 0 if solved else 1

    def _proof(self, policy: Policy, epoch: int) -> float:
        """Mean return of episodes from seeds that nothing has been chosen by."""
        collector = Collector(policy.eval(), make_environments(self.env, TEST_EPISODES))
        try:
            collector.reset(seed=UNSEEN_SEEDS + self.seed + epoch * TEST_EPISODES)
            return float(collector.collect(n_episode=TEST_EPISODES).returns.mean())
        finally:
            collector.close()
            policy.train()


def parsed(description: str | None, arguments: list[str] | None = None) -> dict[str, Any]:
    """seed, minutes and runs as the command line has them."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10.0, help="give up after so many")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder in which the run gets a folder")
    return vars(parser.parse_args(arguments))
