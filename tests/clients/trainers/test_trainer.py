"""An epoch that breaks off: nothing stays open, and it is not counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from clients.trainers import OffpolicyTrainer, TrainingLogger
from clients.trainers.checkpoint import Standing, load_checkpoint
from tests.clients.trainers.test_trainers import Setup


class Failing:
    """Raises with its `when`-th call."""

    def __init__(self, error: BaseException, when: int) -> None:
        self.error, self.left = error, when

    def __call__(self, *args: Any, **kwargs: Any) -> bool:
        self.left -= 1
        if self.left == 0:
            raise self.error
        return False


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()], ids=["error", "interrupt"])
@pytest.mark.parametrize("hook", ["train_fn", "test_fn", "stop_fn", "save_best_fn", "save_checkpoint_fn", "logger"])
def test_a_hook_that_raises_in_the_middle(hook: str, error: BaseException, tmp_path: Path) -> None:
    setup, file = Setup(), tmp_path / "run.pt"
    failing = Failing(error, 1 if hook in ("save_checkpoint_fn", "stop_fn") else 2)
    given: Any = failing
    if hook == "logger":
        given = TrainingLogger()
        given.log_update = failing
    trainer = setup.offpolicy(**{hook: given}, checkpoint=file)
    closed = []
    trainer.close = lambda: closed.append(OffpolicyTrainer.close(trainer))  # type: ignore[method-assign]
    iterator = iter(trainer)
    broke_off = None
    try:
        for _ in range(2):
            next(iterator)
    except (ValueError, KeyboardInterrupt) as raised:
        broke_off = raised
    if hook == "save_best_fn" and broke_off is None:
        return  # the test was never better
    assert broke_off is error
    assert len(closed) >= 2
    assert setup.policy.training
    assert not setup.policy.updating
    done = trainer.standing.epoch
    assert (load_checkpoint(file, setup.policy) if file.exists() else Standing()).epoch == done
    assert [epoch for epoch, _, _ in [next(iterator)]] == [done + 1]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"max_epoch": float("nan")}, ValueError),
        ({"max_epoch": float("inf")}, TypeError),
        ({"max_epoch": 1.5}, TypeError),
        ({"step_per_epoch": "10"}, TypeError),
        ({"step_per_collect": True}, TypeError),
        ({"max_epoch": 0}, ValueError),
        ({"episode_per_test": 0.5}, ValueError),
    ],
)
def test_numbers_that_no_loop_would_reach(wrong: dict[str, Any], error: Any) -> None:
    with pytest.raises(error, match=next(iter(wrong))):
        Setup().offpolicy(**wrong)


def test_a_whole_number_may_be_a_float() -> None:
    assert len(list(Setup().offpolicy(max_epoch=1.0, step_per_epoch=1e1, step_per_collect=4.0))) == 1
