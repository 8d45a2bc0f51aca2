"""What trainers can be told, and what they refuse; rows E… are those of the semantics table."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from clients.async_collector import AsyncCollector
from clients.async_environments import AsyncEnvironments
from clients.trainers import OffpolicyTrainer
from tests.clients.counting import StepEnv
from tests.clients.trainers.test_trainers import Setup


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"update_per_step": 0.1}, r"update_per_step \(0.1\) must make one update at least"),  # E108
        (
            {"episode_per_collect": 1},  # E112
            r"step_per_collect \(4\) and episode_per_collect \(1\) must be given one at a time",
        ),
        ({"step_per_collect": None}, r"step_per_collect \(None\) and episode_per_collect \(None\)"),
        ({"step_per_collect": 0}, r"step_per_collect \(0\) must be at least 1"),
        ({"max_epoch": 0}, r"max_epoch \(0\) must be at least 1"),
        ({"episode_per_test": None}, r"episode_per_test \(None\) must be at least 1"),
        ({"test_in_train": True}, r"test_in_train \(True\) must come with stop_fn"),  # E112
        ({"resume": True}, r"resume \(True\) must come with checkpoint"),
        ({"prefetch": -1}, r"prefetch \(-1\) must be at least 0"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:  # E108, E112
    with pytest.raises(ValueError, match=message):
        Setup().offpolicy(**changes)


def test_environments_step_together_also_where_updates_are_counted() -> None:
    setup = Setup()
    setup.offpolicy(step_per_epoch=4, max_epoch=1, step_per_collect=1, update_per_step=0.4).run()
    assert len(setup.policy.learned) == 2  # one for each two steps, round(0.8)


def test_parts_that_do_not_go_together_are_refused() -> None:  # E112
    setup = Setup()
    with pytest.raises(ValueError, match="stop_fn must come with test_collector"):
        OffpolicyTrainer(setup.policy, setup.train, None, 1, 4, 4, batch_size=4, stop_fn=lambda reward: True)
    environments = AsyncEnvironments([partial(StepEnv, 3)], processes=False)
    with pytest.raises(ValueError, match=r"test_collector \(AsyncCollector\) must be a Collector"):
        OffpolicyTrainer(setup.policy, setup.train, AsyncCollector(setup.policy, environments), 1, 4, 4, 2, 4)
    environments.close()
    with pytest.raises(TypeError, match="unknown_option"):
        setup.offpolicy(unknown_option=1)
    with pytest.raises(TypeError, match=r"logger \(int\) must be a TrainingLogger or have add_scalar"):
        setup.offpolicy(logger=3)
