"""The demo's training: collectors and learner keep each other's pace until the greedy policy proves that it solves the task."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from clients.collector import Collector, CollectStats
from clients.collector_worker import CollectorGroup
from clients.environments import make_environments
from clients.learner import Learner, Pace
from clients.policies.dqn import DQNPolicy, EpsilonSchedule
from clients.policy import Policy
from deploy.curves import LearningCurve, RunFolder
from deploy.interruption import Interruption
from deploy.progress import Reading, Screen

__all__ = ["EPISODES_PER_EVALUATION", "SEED_LIMIT", "Evaluation", "Parts", "Training"]

EPISODES_PER_EVALUATION = 20
UPDATES_PER_EVALUATION = 500
EPISODES_IN_MEAN = 50
UPDATES_PER_SLICE = 16  # between two looks at the collectors and at Ctrl-C
IDLE_WAIT_S = 0.05
READING_EVERY_S = 1.0

# Seeds of three kinds, which never meet: of collecting, of choosing the best weights, and of proving what was chosen.
SEED_LIMIT = 1_000_000_000
SELECTION_SEEDS = SEED_LIMIT
UNSEEN_SEEDS = 2 * SEED_LIMIT


class Evaluation:
    """Greedy episodes in environments of their own, one in each, so that long ones count as much as short ones."""

    def __init__(self, env: str, policy: Policy) -> None:
        self._policy = policy
        self._collector = Collector(policy, make_environments(env, EPISODES_PER_EVALUATION))

    def mean_return(self, first_seed: int) -> float:
        """Mean return of one episode from each of the seeds from `first_seed` on."""
        self._policy.eval()
        try:
            self._collector.reset(seed=first_seed)
            return float(self._collector.collect(n_episode=EPISODES_PER_EVALUATION).returns.mean())
        finally:
            self._policy.train()

    def close(self) -> None:
        """Close the environments."""
        self._collector.close()


@dataclass(frozen=True)
class Parts:
    """What trains: a handle on the buffer, the collectors, the learner with its policy, and what measures that policy."""

    buffer: Any
    group: CollectorGroup
    learner: Learner
    policy: DQNPolicy
    evaluation: Evaluation
    pace: Pace
    exploration: EpsilonSchedule


class Training:
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
        self._loss: float | None = None
        self._proofs = 0
        self._best: tuple[float, dict[str, torch.Tensor]] | None = None
        self._mark = (self._begun_s, 0, 0)  # of the last reading: when, env steps, updates
        self.proven: float | None = None

    @property
    def best_return(self) -> float | None:
        """Best greedy mean return on the episodes that choose between weights."""
        return None if self._best is None else self._best[0]

    def run(self, interruption: Interruption) -> bool:
        """Train until solved (True), until time is up or until interrupted (False); then write what is left to write."""
        solved = False
        next_evaluation = UPDATES_PER_EVALUATION
        while not solved and not interruption.requested and self.elapsed_s < self._limit_s:
            self._advance()
            if self._parts.learner.updates >= next_evaluation:
                next_evaluation += UPDATES_PER_EVALUATION
                solved = self._evaluate()
            if time.monotonic() - self._mark[0] >= READING_EVERY_S:
                self._read()
        if self._mark[1:] != (self._parts.group.env_steps, self._parts.learner.updates):
            self._read()
        self._folder.record("result", solved=solved, greedy_return=self.proven, **self.throughput())
        self._curve.draw(self._folder.path / "learning_curve.png")
        if self._best is not None:
            torch.save(self._best[1], self._folder.path / "policy.pt")
        return solved

    @property
    def elapsed_s(self) -> float:
        """Seconds since the job began, its start-up included."""
        return time.monotonic() - self._started_s

    def throughput(self) -> dict[str, float]:
        """Totals, and rates over the whole training (evaluations included, start-up not)."""
        seconds = max(time.monotonic() - self._begun_s, 1e-9)
        env_steps, updates = self._parts.group.env_steps, self._parts.learner.updates
        return {
            "elapsed_s": round(self.elapsed_s, 3),
            "env_steps": env_steps,
            "updates": updates,
            "env_steps_per_s": round(env_steps / seconds, 1),
            "updates_per_s": round(updates / seconds, 1),
        }

    def _advance(self) -> None:
        """Let whoever is behind go on: admit collectors, take their reports, make the updates that are due."""
        parts = self._parts
        parts.group.admit(parts.pace.steps_admitted(parts.learner.updates))
        due = parts.pace.updates_due(parts.group.env_steps, parts.learner.updates)
        for stats in parts.group.poll(0.0 if due else IDLE_WAIT_S):
            self._count(stats)
        parts.policy.epsilon = parts.exploration(parts.group.env_steps)
        for _ in range(min(due, UPDATES_PER_SLICE)):
            self._loss = parts.learner.step()["loss"]

    def _count(self, stats: CollectStats) -> None:
        self._episodes += stats.n_collected_episodes
        self._returns.extend(stats.returns.tolist())
        if stats.n_collected_episodes:
            self._curve.collected.append((self._parts.group.env_steps, self._mean_return()))

    def _evaluate(self) -> bool:
        """Measure the greedy policy; where it is good enough, prove it on episodes that no choice has seen."""
        parts = self._parts
        score = parts.evaluation.mean_return(SELECTION_SEEDS + self._seed)
        self._curve.greedy.append((parts.group.env_steps, score))
        if self._best is None or score > self._best[0]:
            self._best = (score, parts.policy.weights())
        proof = None
        if score >= self._curve.threshold:
            proof = parts.evaluation.mean_return(UNSEEN_SEEDS + self._seed + self._proofs * EPISODES_PER_EVALUATION)
            self._proofs += 1
        self._folder.record(
            "evaluation",
            elapsed_s=round(self.elapsed_s, 3),
            env_steps=parts.group.env_steps,
            updates=parts.learner.updates,
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
        now_s, env_steps, updates = time.monotonic(), parts.group.env_steps, parts.learner.updates
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
            loss=self._loss,
        )
        self._mark = (now_s, env_steps, updates)
        self._folder.record("progress", **asdict(reading))
        self._screen.show(reading)

    def _mean_return(self) -> float:
        return float(np.mean(self._returns))
