"""What trainers do, in which order; rows E… are those of the semantics table."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from clients.collector import Collector
from clients.environments import DummyVectorEnv
from clients.trainers import (
    OfflineTrainer,
    OffpolicyTrainer,
    OnpolicyTrainer,
    offline_trainer,
    offpolicy_trainer,
    onpolicy_trainer,
)
from replay_service.episodic import VectorReplayBuffer
from tests.clients.batch_policy import BatchPolicy
from tests.clients.counting import StepEnv

QUIET = {"verbose": False, "show_progress": False}


def collector_of(policy: Any, stored: int = 100) -> Collector:
    environments = DummyVectorEnv([partial(StepEnv, 3), partial(StepEnv, 3, 1)])
    return Collector(policy, environments, VectorReplayBuffer(stored, 2) if stored else None)


class Setup:
    """Two environments whose episodes have three steps; notes the calls of the hooks."""

    def __init__(self, **policy_options: Any) -> None:
        self.calls: list[Any] = []
        self.policy = BatchPolicy(**policy_options)
        self.train, self.test = collector_of(self.policy), collector_of(self.policy)

    def hooks(self) -> dict[str, Any]:
        return {
            "train_fn": lambda epoch, step: self.calls.append(("train", epoch, step)),
            "test_fn": lambda epoch, step: self.calls.append(("test", epoch, step)),
            "save_best_fn": lambda policy: self.calls.append("best"),
            **QUIET,
        }

    def offpolicy(self, **changes: Any) -> OffpolicyTrainer:
        settings: dict[str, Any] = {
            "max_epoch": 2,
            "step_per_epoch": 10,
            "step_per_collect": 4,
            "episode_per_test": 2,
            "batch_size": 5,
            "update_per_step": 0.5,
            **self.hooks(),
            **changes,
        }
        return OffpolicyTrainer(self.policy, self.train, self.test, **settings)


def test_offpolicy_calls_in_order() -> None:  # E105
    setup = Setup()
    info = setup.offpolicy().run()
    assert setup.calls == [
        ("test", 0, 0),
        "best",
        *(("train", 1, step) for step in (0, 4, 8)),
        ("test", 1, 12),
        *(("train", 2, step) for step in (12, 16, 20)),
        ("test", 2, 24),
    ]
    # Each update is a batch of its own, and its loss is its number.
    assert setup.policy.learned == [(5, {})] * 12
    totals = {name: info[name] for name in ("train_step", "train_episode", "test_step", "test_episode", "best_reward")}
    assert totals == {"train_step": 24, "train_episode": 8, "test_step": 18, "test_episode": 6, "best_reward": 3}
    assert set(info) == {
        *("duration", "train_time/collector", "train_time/model", "test_time", "train_speed", "test_speed"),
        *("train_step", "train_episode", "test_step", "test_episode", "best_reward", "best_result"),
    }
    assert info["best_result"] == "3.00 ± 0.00"
    assert info["duration"] >= info["train_time/collector"] > 0
    assert info["test_time"] > 0
    assert info["train_speed"] > 0


def test_what_an_epoch_gives() -> None:  # E106
    setup = Setup()
    trainer = iter(setup.offpolicy())
    epoch, stat, info = next(trainer)
    assert epoch == 1
    assert stat == {
        "loss": 3.5,
        "gradient_step": 6,
        "env_step": 12,
        "rew": 3.0,
        "len": 3,
        "n/ep": 2,
        "n/st": 4,
        "test_reward": 3.0,
        "test_reward_std": 0.0,
        "best_reward": 3.0,
        "best_reward_std": 0.0,
        "best_epoch": 0,
    }
    assert info["train_step"] == 12
    assert len(setup.policy.learned) == 6  # so the last loss is 6, and their mean 3.5
    assert trainer.losses == {"loss": 3.5}
    assert next(trainer)[0] == 2
    with pytest.raises(StopIteration):
        next(trainer)


def test_states_of_the_policy() -> None:
    setup = Setup()
    setup.policy.eval()
    learning: list[tuple[bool, bool]] = []
    learn = setup.policy.learn
    setup.policy.learn = lambda batch, **options: (  # type: ignore[method-assign]
        learning.append((setup.policy.training, setup.policy.updating)),
        learn(batch, **options),
    )[1]
    setup.offpolicy(max_epoch=1).run()
    # Testing (3 steps of both environments), collecting (6), testing.
    assert setup.policy.states == [(False, False)] * 3 + [(True, False)] * 6 + [(False, False)] * 3
    assert learning == [(True, True)] * 6


@pytest.mark.parametrize(
    ("in_train", "env_step", "gradient_step", "test_episodes"),
    [(True, 8, 2, 4), (False, 12, 6, 4)],
)
def test_stops_when_good_enough(  # E107, E122
    in_train: bool, env_step: int, gradient_step: int, test_episodes: int
) -> None:
    setup = Setup()
    trainer = setup.offpolicy(stop_fn=lambda reward: reward >= 3, test_in_train=in_train)
    epochs = [(epoch, stat["env_step"], stat["gradient_step"]) for epoch, stat, _ in trainer]
    # The first test was good enough, too, but only tells how things stand.
    assert epochs == [(1, env_step, gradient_step)]
    assert setup.test.collect_episode == test_episodes
    trained = [call for call in setup.calls if call[0] == "train"]
    assert (len(trained), len(setup.policy.learned)) == (env_step // 4, gradient_step)


def test_collecting_that_went_well_does_not_stop_where_the_test_does_not() -> None:
    setup = Setup()
    answers: list[float] = []

    def good_enough(reward: float) -> bool:
        answers.append(reward)
        return len(answers) == 1  # once, for what was collected

    setup.offpolicy(stop_fn=good_enough, max_epoch=1).run()
    assert answers[:2] == [3.0, 3.0]
    assert setup.policy.learned == [(5, {})] * 6


def test_stop_fn_gets_the_best_and_save_best_only_what_is_better() -> None:
    setup = Setup()
    means = iter([1.0, 4.0, 2.0, 4.0])
    asked: list[float] = []
    trainer = setup.offpolicy(
        max_epoch=3,
        test_in_train=False,
        stop_fn=lambda reward: asked.append(reward) or False,  # type: ignore[func-returns-value]
        reward_metric=lambda returns: returns,
    )
    measured = trainer.test

    def scored() -> Any:
        return replace(measured(), returns=np.full(2, next(means)))

    trainer.test = scored  # type: ignore[method-assign]
    stats = [stat for _, stat, _ in trainer]
    assert asked == [4.0, 4.0, 4.0]
    assert [stat["best_epoch"] for stat in stats] == [1, 1, 1]
    assert [stat["test_reward"] for stat in stats] == [4.0, 2.0, 4.0]
    assert setup.calls.count("best") == 2


def test_what_happens_between_training_and_test() -> None:
    setup = Setup()
    stored: list[int] = []
    trainer = setup.offpolicy(
        max_epoch=1,
        save_checkpoint_fn=lambda *steps: setup.calls.append(("checkpoint", *steps)),
        test_fn=lambda epoch, step: (
            setup.calls.append(("test", epoch, step)),
            stored.append(len(setup.test.buffer)),
            setup.calls.append(("testing", setup.policy.training)),
        ),
    )
    setup.test.collect(n_step=4)
    trainer.run()
    assert setup.calls[-3:] == [("checkpoint", 1, 12, 6), ("test", 1, 12), ("testing", False)]
    # A test begins with an empty buffer and fresh environments.
    assert stored == [0, 0]
    assert setup.test.buffer[:].obs.tolist() == [0, 1, 2, 100, 101, 102]
    assert (setup.test.collect_step, setup.test.collect_episode) == (12, 4)


def test_steps_of_an_epoch_overshoot_to_whole_episodes() -> None:
    setup = Setup()
    trainer = setup.offpolicy(max_epoch=2, step_per_collect=None, episode_per_collect=2, step_per_epoch=7)
    assert [(stat["env_step"], stat["n/ep"], stat["n/st"]) for _, stat, _ in trainer] == [(12, 2, 6), (24, 2, 6)]
    assert setup.policy.learned == [(5, {})] * 12


def test_onpolicy_learns_from_everything_once() -> None:  # E109, E125
    setup = Setup()
    seen: list[list[float]] = []
    learn = setup.policy.learn
    setup.policy.learn = lambda batch, **options: (  # type: ignore[method-assign]
        seen.append(batch.obs.tolist()),
        learn(batch, **options),
    )[1]
    trainer = OnpolicyTrainer(
        setup.policy,
        setup.train,
        setup.test,
        max_epoch=2,
        step_per_epoch=10,
        repeat_per_collect=2,
        episode_per_test=2,
        batch_size=3,
        step_per_collect=4,
        **setup.hooks(),
    )
    epochs = [(epoch, stat["gradient_step"], stat["env_step"], len(setup.train.buffer)) for epoch, stat, _ in trainer]
    assert epochs == [(1, 3, 12, 0), (2, 6, 24, 0)]
    assert setup.policy.learned == [(4, {"batch_size": 3, "repeat": 2})] * 6
    assert seen[:3] == [[0, 1, 100, 101], [2, 0, 102, 100], [1, 2, 101, 102]]  # all, in order, and each once
    # Running episodes go on over the emptied buffer.
    assert setup.train.collect_episode == 8


def test_lists_of_losses_are_so_many_gradient_steps() -> None:
    setup = Setup()
    setup.policy.learn = lambda batch, **options: {"loss": [1.0, 2.0, 6.0], "clip": 4.0}  # type: ignore[method-assign]
    trainer = OnpolicyTrainer(
        setup.policy,
        setup.train,
        None,
        1,
        4,
        repeat_per_collect=3,
        batch_size=9,
        episode_per_collect=2,
        **setup.hooks(),
    )
    (_, stat, info) = next(trainer)
    assert (stat["gradient_step"], stat["loss"], stat["clip"]) == (3, 3.0, 4.0)
    assert "test_reward" not in stat
    assert "best_reward" not in info
    assert stat["n/ep"] == 2


def test_offline_learns_from_what_is_there() -> None:  # E111, E124
    setup = Setup()
    buffer = collector_of(setup.policy, 20)
    buffer.collect(n_step=10)
    trainer = OfflineTrainer(setup.policy, buffer.buffer, setup.test, 2, 3, 2, 4, **setup.hooks())
    epochs = [(epoch, stat["gradient_step"], stat["env_step"], stat["n/ep"]) for epoch, stat, _ in trainer]
    assert epochs == [(1, 3, 12, 10), (2, 6, 24, 10)]
    assert setup.policy.learned == [(4, {})] * 6
    info = trainer.info()
    assert (info["test_step"], info["best_reward"]) == (18, 3)
    assert (info["train_step"], info["train_episode"], info["test_episode"]) == (0, 0, 6)
    assert len(buffer.buffer) == 10  # nothing is thrown away


def test_functions_are_the_trainers_at_once() -> None:
    setup = Setup()
    common = {"max_epoch": 1, "episode_per_test": 2, "batch_size": 4, **QUIET}
    collected = {"step_per_epoch": 4, "step_per_collect": 4, **common}
    assert offpolicy_trainer(setup.policy, setup.train, setup.test, **collected)["train_step"] == 4
    assert onpolicy_trainer(setup.policy, setup.train, setup.test, repeat_per_collect=1, **collected)["train_step"] == 4
    setup.train.collect(n_step=4)
    assert (
        offline_trainer(setup.policy, setup.train.buffer, setup.test, update_per_epoch=2, **common)["test_step"] == 12
    )


def test_several_trainers_side_by_side() -> None:
    trainers = [Setup().offpolicy(), Setup().offpolicy(max_epoch=3)]
    results = [tuple(epoch for epoch, _, _ in row) for row in zip(*trainers, strict=False)]
    assert results == [(1, 1), (2, 2)]


def test_iterating_again_begins_anew() -> None:
    trainer = Setup().offpolicy(max_epoch=1)
    for _ in range(2):
        assert [(epoch, stat["env_step"], stat["gradient_step"]) for epoch, stat, _ in trainer] == [(1, 12, 6)]


def test_stop_ends_before_the_next_step() -> None:
    setup = Setup()
    trainer = setup.offpolicy(train_fn=lambda epoch, step: trainer.stop() if step == 8 else None)
    ((epoch, stat, _),) = list(trainer)
    assert (epoch, stat["env_step"], stat["gradient_step"]) == (1, 8, 4)
    assert "test_reward" not in stat
    assert setup.test.collect_episode == 2


def test_a_line_per_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    Setup().offpolicy(verbose=True, show_progress=True).run()
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "Epoch #1: 12 env steps, 6 updates, test reward 3.00 ± 0.00, best 3.00 ± 0.00 in #0",
        "Epoch #2: 24 env steps, 12 updates, test reward 3.00 ± 0.00, best 3.00 ± 0.00 in #0",
    ]
