"""The demo's training: epochs of an off-policy trainer until the greedy policy proves that it solves the task."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from clients.collect_stats import CollectStats
from clients.collector import Collector
from clients.environments import make_environments
from clients.policies.dqn import DQNPolicy, EpsilonSchedule
from clients.policy import Policy
from clients.remote_collector import RemoteCollector
from clients.trainers import OffpolicyTrainer, TrainingLogger
from deploy.curves import LearningCurve, RunFolder
from deploy.interruption import Interruption
from deploy.progress import Reading, Screen

__all__ = ["EPISODES_PER_EVALUATION", "SEED_LIMIT", "Evaluation", "Parts", "Training"]

EPISODES_PER_EVALUATION = 20
STEPS_PER_EVALUATION = 4000
STEPS_PER_COLLECT = 256
MANY_EPOCHS = 1_000_000  # time ends a run, not their number
EPISODES_IN_MEAN = 50
READING_EVERY_S = 1.0

# Seeds of three kinds, which never meet: of collecting, of choosing the best weights, and of proving what was chosen.
SEED_LIMIT = 1_000_000_000
SELECTION_SEEDS = SEED_LIMIT
UNSEEN_SEEDS = 2 * SEED_LIMIT


class Evaluation:
    """Greedy episodes in environments of their own, one in each, so that long ones count as much as short ones."""

    def __init__(self, env: str, policy: Policy) -> None:
        self._policy = policy
        self.collector = Collector(policy, make_environments(env, EPISODES_PER_EVALUATION))

    def mean_return(self, first_seed: int) -> float:
        """Mean return of one episode from each of the seeds from `first_seed` on."""
        self._policy.eval()
        try:
            self.collector.reset_env(seed=first_seed)
            return float(self.collector.collect(n_episode=EPISODES_PER_EVALUATION)["rew"])
        finally:
            self._policy.train()

    def close(self) -> None:
        """Close the environments."""
        self.collector.close()


@dataclass(frozen=True)
class Parts:
    """What trains: the buffer, what collects into it (here or in Ray actors), the policy, and what measures that policy.

    warmup_steps: environment steps before the first update. updates_per_step: gradient steps per environment step.
    """

    buffer: Any
    collector: Collector | RemoteCollector
    policy: DQNPolicy
    evaluation: Evaluation
    exploration: EpsilonSchedule
    warmup_steps: int
    updates_per_step: float
    batch_size: int


class Training(TrainingLogger):
    """One run. `threshold` is the curve's; `started_s` (monotonic clock) and `limit_s` say when time is up."""

    def __init__(
        self,
        parts: Parts,
        folder: RunFolder,
        curve: LearningCurve,
        screen: Screen,
        *,
        seed: int,
        started_s: float,
        limit_s: float,
    ) -> None:
        self._parts = parts
        self._folder = folder
        self._curve = curve
        self._screen = screen
        self._seed = seed
        self._started_s = started_s
        self._limit_s = limit_s
        self._begun_s = time.monotonic()
        self._returns: deque[float] = deque(maxlen=EPISODES_IN_MEAN)
        self._episodes = 0
        self._warmup_steps = 0
        self._proofs = 0
        self._best: tuple[float, dict[str, torch.Tensor]] | None = None
        self._mark = (self._begun_s, 0, 0)  # of the last reading: when, env steps, updates
        self.proven: float | None = None
        self._trainer = OffpolicyTrainer(
            parts.policy,
            parts.collector,
            parts.evaluation.collector,
            max_epoch=MANY_EPOCHS,
            step_per_epoch=STEPS_PER_EVALUATION,
            step_per_collect=STEPS_PER_COLLECT,
            episode_per_test=EPISODES_PER_EVALUATION,
            batch_size=parts.batch_size,
            update_per_step=parts.updates_per_step,
            train_fn=self._before_collect,
            test_fn=self._before_test,
            logger=self,
            show_progress=False,
            verbose=False,
        )
        self._interruption: Interruption | None = None

    @property
    def best_return(self) -> float | None:
        """Best greedy mean return on the episodes that choose between weights."""
        return None if self._best is None else self._best[0]

    def run(self, interruption: Interruption) -> bool:
        """Train until solved (True), until time is up or until interrupted (False); then write what is left to write."""
        self._interruption = interruption
        solved = False
        if not self._over:
            self._warm_up()
            for _, stat, _ in self._trainer:
                if "test_reward" in stat and self._evaluate(stat["test_reward"]):
                    solved = True
                    break
            self._trainer.close()
        if self._mark[1:] != (self.env_steps, self.updates):
            self._read()
        self._folder.record("result", solved=solved, greedy_return=self.proven, **self.throughput())
        self._curve.draw(self._folder.path / "learning_curve.png")
        if self._best is not None:
            torch.save(self._best[1], self._folder.path / "policy.pt")
        return solved

    @property
    def env_steps(self) -> int:
        """Environment steps that were collected."""
        return self._warmup_steps + self._trainer.standing.env_step

    @property
    def updates(self) -> int:
        """Gradient steps."""
        return self._trainer.standing.gradient_step

    @property
    def elapsed_s(self) -> float:
        """Seconds since the job began, its start-up included."""
        return time.monotonic() - self._started_s

    def throughput(self) -> dict[str, float]:
        """Totals, and rates over the whole training (evaluations included, start-up not)."""
        seconds = max(time.monotonic() - self._begun_s, 1e-9)
        return {
            "elapsed_s": round(self.elapsed_s, 3),
            "env_steps": self.env_steps,
            "updates": self.updates,
            "env_steps_per_s": round(self.env_steps / seconds, 1),
            "updates_per_s": round(self.updates / seconds, 1),
        }

    def log_train(self, stats: CollectStats, env_step: int) -> None:
        """Take what was collected into the mean and the curve."""
        self._episodes += stats.n_collected_episodes
        self._returns.extend(stats.returns.tolist())
        if stats.n_collected_episodes:
            self._curve.collected.append((self.env_steps, self._mean_return()))

    @property
    def _over(self) -> bool:
        interrupted = self._interruption is not None and self._interruption.requested
        return interrupted or self.elapsed_s >= self._limit_s

    def _warm_up(self) -> None:
        """Explore before there is anything to learn from."""
        self._parts.policy.train()
        stats = self._parts.collector.collect(n_step=self._parts.warmup_steps)
        self._warmup_steps = stats.n_collected_steps
        self.log_train(stats, 0)

    def _before_collect(self, epoch: int, env_step: int) -> None:
        """Explore less and less; end where time is up or somebody wishes so."""
        self._parts.policy.epsilon = self._parts.exploration(self.env_steps)
        if time.monotonic() - self._mark[0] >= READING_EVERY_S:
            self._read()
        if self._over:
            self._trainer.stop()

    def _before_test(self, epoch: int, env_step: int) -> None:
        """Choose between weights by the same episodes every time."""
        self._parts.evaluation.collector.reset_env(seed=SELECTION_SEEDS + self._seed)

    def _evaluate(self, score: float) -> bool:
        """Note the score of the greedy policy; where it is good enough, prove it on episodes that no choice has seen."""
        parts = self._parts
        self._curve.greedy.append((self.env_steps, score))
        if self._best is None or score > self._best[0]:
            self._best = (score, parts.policy.weights())
        proof = None
        if score >= self._curve.threshold:
            proof = parts.evaluation.mean_return(UNSEEN_SEEDS + self._seed + self._proofs * EPISODES_PER_EVALUATION)
            self._proofs += 1
        self._folder.record(
            "evaluation",
            elapsed_s=round(self.elapsed_s, 3),
            env_steps=self.env_steps,
            updates=self.updates,
            greedy_return=score,
            unseen_return=proof,
        )
        if proof is None or proof < self._curve.threshold:
            return False
        # What was proven is what is kept, also where an earlier, unproven policy had the same score.
        self._best = (score, parts.policy.weights())
        self.proven = proof
        return True

    def _read(self) -> None:
        parts = self._parts
        now_s, env_steps, updates = time.monotonic(), self.env_steps, self.updates
        seconds = max(now_s - self._mark[0], 1e-9)
        reading = Reading(
            elapsed_s=round(self.elapsed_s, 3),
            env_steps=env_steps,
            updates=updates,
            episodes=self._episodes,
            mean_return=self._mean_return() if self._returns else None,
            best_return=self.best_return,
            env_steps_per_s=round((env_steps - self._mark[1]) / seconds, 1),
            updates_per_s=round((updates - self._mark[2]) / seconds, 1),
            buffer_fill=float(parts.buffer.stats()["utilization"]),
            epsilon=parts.policy.epsilon,
            loss=self._trainer.losses.get("loss"),
        )
        self._mark = (now_s, env_steps, updates)
        self._folder.record("progress", **asdict(reading))
        self._screen.show(reading)

    def _mean_return(self) -> float:
        return float(np.mean(self._returns))
