"""Schedules: the values they set, step by step."""

from __future__ import annotations

from typing import Any

import pytest

from replay_service import (
    LambdaScheduler,
    LazyTensorStorage,
    LinearScheduler,
    ParameterScheduler,
    PrioritizedSampler,
    RandomSampler,
    SchedulerList,
    StepScheduler,
    TensorDictPrioritizedReplayBuffer,
)


def _sampler() -> PrioritizedSampler:
    return PrioritizedSampler(4, alpha=0.8, beta=0.6)


def _values(scheduler: ParameterScheduler, steps: int) -> list[float]:
    values = []
    for _ in range(steps):
        scheduler.step()
        values.append(round(scheduler.current, 9))
    return values


def test_linear() -> None:
    assert _values(LinearScheduler(_sampler(), "beta", 1.0, 4), 6) == [0.7, 0.8, 0.9, 1.0, 1.0, 1.0]
    assert _values(LinearScheduler(_sampler(), "beta", 0.0, 2), 3) == [0.3, 0.0, 0.0]


def test_steps() -> None:
    additive = StepScheduler(_sampler(), "beta", gamma=0.25, n_steps=2, mode="additive", max_value=1.0)
    assert _values(additive, 6) == [0.6, 0.85, 0.85, 1.0, 1.0, 1.0]
    assert _values(StepScheduler(_sampler(), "beta", gamma=0.5, min_value=0.2), 3) == [0.3, 0.2, 0.2]
    assert _values(StepScheduler(_sampler(), "alpha"), 2) == [0.72, 0.648]


def test_functions() -> None:
    scheduler = LambdaScheduler(_sampler(), "beta", lambda step: 0.5**step, min_value=0.1)
    assert _values(scheduler, 4) == [0.3, 0.15, 0.1, 0.1]


def test_a_buffer_stands_for_its_sampler() -> None:
    buffer = TensorDictPrioritizedReplayBuffer(alpha=0.8, beta=0.6, storage=LazyTensorStorage(4))
    schedulers = SchedulerList([LinearScheduler(buffer, "beta", 1.0, 2)])
    schedulers.append(StepScheduler(buffer.sampler, "alpha", gamma=0.5))
    schedulers.step()
    assert buffer.sampler.beta == pytest.approx(0.8)
    assert buffer.sampler.alpha == pytest.approx(0.4)
    SchedulerList(LinearScheduler(buffer, "beta", 1.0, 1)).step()
    assert buffer.sampler.beta == 1.0


def test_a_wrong_value_is_not_a_step() -> None:
    scheduler = StepScheduler(_sampler(), "beta", gamma=-1.0, mode="additive")
    with pytest.raises(ValueError, match="beta"):
        scheduler.step()
    assert scheduler.state_dict()["steps"] == 0


def test_they_go_on_where_they_were() -> None:
    sampler, other = _sampler(), _sampler()
    saved = SchedulerList([LinearScheduler(sampler, "beta", 1.0, 4), StepScheduler(sampler, "alpha", n_steps=2)])
    for _ in range(3):
        saved.step()
    other.load_state_dict(sampler.state_dict())
    loaded = SchedulerList([LinearScheduler(other, "beta", 1.0, 4), StepScheduler(other, "alpha", n_steps=2)])
    loaded.load_state_dict(saved.state_dict())
    for _ in range(3):
        saved.step()
        loaded.step()
        assert (sampler.alpha, sampler.beta) == (other.alpha, other.beta)
    with pytest.raises(ValueError, match=r"schedulers \(1\) must be as many"):
        SchedulerList(LinearScheduler(other, "beta", 1.0, 4)).load_state_dict(saved.state_dict())
    with pytest.raises(ValueError, match=r"param_name \('eps'\) must be"):
        LinearScheduler(other, "eps", 1.0, 4).load_state_dict(saved.schedulers[0].state_dict())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda s: LinearScheduler(s, "gamma", 1.0, 4), ValueError, r"param_name \('gamma'\) must be an attribute"),
        (lambda s: LinearScheduler(5, "beta", 1.0, 4), TypeError, "obj must be a ReplayBuffer or a Sampler; got int"),
        (lambda s: LinearScheduler(s, "beta", 1.0, 0), ValueError, r"num_steps \(0\) must be a positive integer"),
        (lambda s: StepScheduler(s, "beta", n_steps=0), ValueError, r"n_steps \(0\)"),
        (lambda s: StepScheduler(s, "beta", mode="cubic"), ValueError, r"mode \('cubic'\) must be one of"),
        (
            lambda s: StepScheduler(s, "beta", min_value=1, max_value=0),
            ValueError,
            r"min_value \(1\) must not be above",
        ),
        (lambda s: LambdaScheduler(s, "beta", 0.5), TypeError, "lambda_fn must be callable"),
        (lambda s: SchedulerList([s]), TypeError, "scheduler must be a ParameterScheduler"),
        (lambda s: LinearScheduler(RandomSampler(), "beta", 1.0, 4), ValueError, "RandomSampler"),
    ],
)
def test_wrong_settings_are_refused(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(_sampler())
