"""The learning examples: when they count as solved, and what they leave behind."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from clients.collect_stats import CollectStats
from clients.collector import Collector
from clients.environments import make_environments
from clients.policies.dqn import DQNPolicy
from clients.trainers import OffpolicyTrainer
from examples import dqn_cartpole, ppo_cartpole, sac_pendulum
from examples.solving import TEST_EPISODES, CurvePoints, Task, parsed
from replay_service.episodic import VectorReplayBuffer


@pytest.fixture
def task(tmp_path: Path) -> Task:
    return Task("CartPole-v1", 5.0, "a test", runs=tmp_path, minutes=5.0)


class Epochs:
    """A trainer without training: gives the test returns it is told to."""

    def __init__(self, policy: Any, returns: list[float]) -> None:
        self.policy = policy
        self.given = 0
        self.closed = False
        self._returns = returns

    def __iter__(self) -> Iterator[Any]:
        for value in self._returns:
            self.given += 1
            yield self.given, {"env_step": self.given, "test_reward": value}, {}

    def close(self) -> None:
        self.closed = True


def policy_of(task: Task) -> DQNPolicy:
    return DQNPolicy.for_spaces(*task.spaces(), hidden=(4,))


def lines(task: Task) -> list[dict[str, Any]]:
    (metrics,) = task.runs.glob("*/metrics.jsonl")
    return [json.loads(line) for line in metrics.read_text().splitlines()]


def test_solved_once_tests_and_unseen_episodes_say_so(task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    trainer: Any = Epochs(policy_of(task), [1.0, 6.0, 7.0])
    assert task.solve(trainer) == 0
    assert (trainer.given, trainer.closed) == (2, True)
    assert capsys.readouterr().out.startswith("Solved: CartPole-v1")
    assert [line["kind"] for line in lines(task)] == ["epoch", "epoch", "proof"]
    (folder,) = task.runs.iterdir()
    assert (folder / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "policy.pt").is_file()


def test_not_solved_by_a_lucky_test(task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    hard = Task("CartPole-v1", 400.0, "a test", runs=task.runs)
    trainer: Any = Epochs(policy_of(task), [450.0, 1.0])
    assert hard.solve(trainer) == 1
    assert trainer.given == 2
    assert capsys.readouterr().out.startswith("Not solved")


def test_time_is_up_after_an_epoch(task: Task) -> None:
    hurried = Task("CartPole-v1", 5.0, "a test", runs=task.runs, minutes=-1.0)
    trainer: Any = Epochs(policy_of(task), [1.0, 1.0])
    assert hurried.solve(trainer) == 1
    assert trainer.given == 1


def test_goes_with_a_real_trainer(task: Task) -> None:
    policy = policy_of(task)
    buffer = VectorReplayBuffer(100, 2)
    trainer = OffpolicyTrainer(
        policy,
        Collector(policy, make_environments(task.env, 2), buffer, seed=0),
        task.tester(policy),
        max_epoch=2,
        step_per_epoch=16,
        step_per_collect=8,
        episode_per_test=TEST_EPISODES,
        logger=task.points,
        batch_size=4,
        update_per_step=0.25,
        show_progress=False,
        verbose=False,
    )
    assert task.solve(trainer) == 0  # any policy lasts longer than five steps
    assert [step for step, _ in task.points.tested] == [0, 16]
    first = lines(task)[0]
    assert (first["env_step"], first["gradient_step"]) == (16, 4)
    assert math.isfinite(first["loss"])


def test_the_curve_is_of_the_last_episodes_and_of_tests() -> None:
    points = CurvePoints()
    for step, returns in enumerate([[], [1.0, 3.0], [5.0], [7.0] * 50], start=1):
        found = np.array(returns, dtype=np.float64)
        stats = CollectStats(8, len(returns), found, found.astype(np.int64), 0.1)
        points.log_train(stats, step)
    points.log_test(stats, 9)
    assert points.collected == [(2, 2.0), (3, 3.0), (4, 7.0)]
    assert points.tested == [(9, 7.0)]


def test_testers_begin_with_the_same_episodes(task: Task) -> None:
    policy = policy_of(task)
    one, other = (task.tester(policy.eval()).collect(n_episode=3).returns for _ in range(2))
    assert np.array_equal(one, other)


def test_spaces(task: Task) -> None:
    observation, action = task.spaces()
    assert observation.shape == (4,)
    assert action == spaces.Discrete(2)


def test_options() -> None:
    assert parsed("text", []) == {"seed": 0, "minutes": 10.0, "runs": Path("runs")}
    assert parsed("text", ["--seed", "3", "--minutes", "0.5", "--runs", "x"]) == {
        "seed": 3,
        "minutes": 0.5,
        "runs": Path("x"),
    }


@pytest.mark.parametrize("example", [dqn_cartpole, ppo_cartpole, sac_pendulum])
def test_help_says_how_it_is_run(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        example.main(["--help"])
    assert f"python -m {example.__name__}" in capsys.readouterr().out
