from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from clients.learner import Learner, Pace
from replay_service import LazyTensorStorage, TensorDictReplayBuffer
from replay_service.errors import EmptyBufferError
from tests.clients.fixed_policy import FixedPolicy


def rows(count: int) -> TensorDict:
    return TensorDict({"observation": torch.arange(float(count))}, batch_size=[count])


@pytest.fixture(params=["local", "on ray"])
def buffer(request: pytest.FixtureRequest) -> Iterator[Any]:
    """An empty buffer, or the handle of one."""
    if request.param == "local":
        yield TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4)
        return
    recipe = partial(TensorDictReplayBuffer, storage=partial(LazyTensorStorage, 10), batch_size=4)
    with request.getfixturevalue("guest_house").host(recipe, "ray").client() as client:
        yield client


def test_learns_from_batches_of_the_buffer_and_publishes(buffer: Any) -> None:
    buffer.extend(rows(6))
    published: list[int] = []
    policy = FixedPolicy()
    learner = Learner(policy, buffer, publish=lambda weights: published.append(int(weights["choice"])), publish_every=2)
    for choice in range(5):
        policy.actor.choice.fill_(choice)
        assert learner.step() == {"rows": 4.0}
    assert learner.updates == 5
    assert published == [1, 3]
    learner.publish()
    assert published == [1, 3, 4]
    learner.close()
    learner.close()


def test_batch_size_is_a_choice(buffer: Any) -> None:
    buffer.extend(rows(6))
    learner = Learner(FixedPolicy(), buffer, batch_size=3)
    assert learner.step() == {"rows": 3.0}
    learner.close()


def test_an_empty_buffer_is_an_error_until_it_has_rows(buffer: Any) -> None:
    learner = Learner(FixedPolicy(), buffer)
    for _ in range(2):
        with pytest.raises(EmptyBufferError):
            learner.step()
    assert learner.updates == 0
    buffer.extend(rows(6))
    assert learner.step() == {"rows": 4.0}
    learner.close()


def test_learner_and_collectors_pay_for_each_other() -> None:
    pace = Pace(updates_per_step=0.25, warmup_steps=100, lead_steps=40)
    assert [pace.updates_due(steps, 0) for steps in (0, 99, 100, 103, 104, 140)] == [0, 0, 0, 0, 1, 10]
    assert pace.updates_due(140, 8) == 2
    assert pace.updates_due(140, 20) == 0
    assert [pace.steps_admitted(updates) for updates in (0, 10)] == [140, 180]


@pytest.mark.parametrize("pace", [Pace(), Pace(1 / 3, 0, 3), Pace(2.0, 7, 1), Pace(0.01, 50, 100)])
def test_nobody_waits_for_ever(pace: Pace) -> None:
    env_steps = updates = 0
    for _ in range(600):
        admitted, due = pace.steps_admitted(updates), pace.updates_due(env_steps, updates)
        assert env_steps < admitted or due > 0
        env_steps, updates = max(env_steps, admitted), updates + min(due, 1)
    assert updates >= 300
    assert updates <= (env_steps - pace.warmup_steps) * pace.updates_per_step


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"updates_per_step": 0.0}, r"updates_per_step \(0.0\) must be above 0"),
        ({"warmup_steps": -1}, r"warmup_steps \(-1\) must be at least 0"),
        ({"updates_per_step": 0.1, "lead_steps": 9}, r"lead_steps \(9\) must pay for one update at least \(10 steps\)"),
    ],
)
def test_a_pace_that_cannot_work_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pace(**settings)


@pytest.mark.parametrize("name", ["publish_every", "prefetch"])
def test_numbers_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} \(0\) must be at least 1"):
        Learner(FixedPolicy(), None, **{name: 0})  # type: ignore[arg-type]
