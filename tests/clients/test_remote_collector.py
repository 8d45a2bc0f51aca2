"""One setting says where collecting happens; everything else is the same."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from clients.collector import Collector
from clients.collector_worker import CollectorRecipe
from clients.remote_collector import RemoteCollector, start_collector
from clients.trainers import OnpolicyTrainer
from replay_service.episodic import VectorReplayBuffer
from replay_service.errors import ClosedError
from tests.clients.batch_policy import BatchPolicy
from tests.clients.counting import StepEnv
from tests.wire.serving import House

NO_CORES = {"num_cpus": 0}


class Versioned(BatchPolicy):
    """Its action is its weight, so that stored actions tell which weights acted."""

    def forward(self, data: Any, state: Any = None) -> Any:
        result = super().forward(data, state)
        result.act = result.act + int(self.net.weight.item())
        return result

    def learn(self, batch: Any, **kwargs: Any) -> Any:
        self.net.weight.data += 1
        return {**super().learn(batch, **kwargs), "weights": float(batch.act.min()), "newest": float(batch.act.max())}


def versioned() -> Versioned:
    policy = Versioned()
    policy.net.weight.data.zero_()
    return policy


@pytest.fixture(scope="module")
def workers(guest_house: House) -> Iterator[Any]:
    """Two workers with two environments each, in front of one hosted buffer of four lanes."""
    with guest_house.host_steps(partial(VectorReplayBuffer, 120, 4), "ray").client() as handle:
        made = started(handle, 2)
        yield made
        made.close()


def started(buffer: Any, processes: int, policy: Versioned | None = None) -> Any:
    recipe = CollectorRecipe(policy=versioned, env=partial(StepEnv, 3), num_envs=2, buffer=buffer)
    return start_collector(
        recipe, versioned() if policy is None else policy, processes=processes, remote_options=NO_CORES
    )


@pytest.fixture(params=[0, 2], ids=["here", "in actors"])
def collector(request: pytest.FixtureRequest) -> Any:
    """Collectors in one process on a local buffer, or in actors on a hosted one, both of them empty."""
    if request.param == 0:
        return started(VectorReplayBuffer(120, 4), 0)
    made = request.getfixturevalue("workers")
    made.policy.net.weight.data.zero_()
    made.policy.learned.clear()
    made.reset()
    return made


def test_collects_into_the_buffer(collector: Any) -> None:
    stats = collector.collect(n_step=12)
    assert (stats["n/st"], stats["n/ep"], stats["rews"].tolist()) == (12, 4, [3.0] * 4)
    assert len(collector.buffer) == collector.collect_step == 12
    assert sorted(collector.buffer[:].obs.tolist()) == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert collector.collect(n_episode=3)["n/ep"] == 3
    assert collector.collect(n_step=4, random=True)["n/st"] == 4
    collector.reset_stat()
    assert (collector.collect_step, collector.collect_episode, collector.collect_time) == (0, 0, 0.0)
    collector.reset_buffer()
    assert len(collector.buffer) == 0


def test_trains_on_what_the_newest_weights_collected(collector: Any) -> None:
    trainer = OnpolicyTrainer(
        collector.policy, collector, None, 1, 24, repeat_per_collect=1, batch_size=8, step_per_collect=8, verbose=False
    )
    seen = [rows for rows, _ in collector.policy.learned]
    ((_, stat, info),) = list(trainer)
    assert (stat["gradient_step"], stat["env_step"], info["train_step"]) == (3, 24, 24)
    assert [rows for rows, _ in collector.policy.learned] == [*seen, 8, 8, 8]
    # Actions 0, 1 and 2: every update saw only what the weights before it had chosen.
    assert (stat["weights"], stat["newest"]) == (1.0, 1.0)
    assert len(collector.buffer) == 0
    assert info["train_episode"] == 8


def test_workers_may_be_ahead_of_the_learner(workers: Any) -> None:
    workers.reset()
    ahead = RemoteCollector(workers.group, workers.policy, workers.buffer, lead_steps=600)
    before = workers.group.env_steps
    stats = ahead.collect(n_step=100)
    assert stats["n/st"] >= 100
    assert workers.group.env_steps - before == stats["n/st"]
    assert workers.group.steps_under_way > 0
    # What is asked for together waits for what is under way, and brings it along.
    assert ahead.collect(n_episode=1)["n/st"] >= 512
    assert not workers.group.busy


def test_where_collecting_happens_is_a_number() -> None:
    assert isinstance(started(VectorReplayBuffer(20, 2), 0), Collector)
    with pytest.raises(ValueError, match=r"processes \(-1\) must be at least 0"):
        started(None, -1)
    with pytest.raises(ValueError, match=r"lead_steps \(-1\) must be at least 0"):
        RemoteCollector(None, versioned(), None, lead_steps=-1)  # type: ignore[arg-type]


def test_limits_of_workers_are_checked(workers: Any) -> None:
    for limits in ({}, {"n_step": 1, "n_episode": 1}, {"n_step": 0}):
        with pytest.raises(ValueError, match="must be given one at a time"):
            workers.collect(**limits)
    with pytest.raises(ValueError, match=r"render \(0.1\) must be None"):
        workers.collect(n_step=1, render=0.1)


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize("lead_steps", [0, 600])
def test_closed_collectors_collect_nothing_and_keep_nobody_waiting(lead_steps: int) -> None:
    recipe = CollectorRecipe(versioned, StepEnv, 1, None)
    closed = start_collector(recipe, versioned(), processes=1, remote_options=NO_CORES, lead_steps=lead_steps)
    closed.close()
    with pytest.raises(ClosedError, match="collectors must be running"):
        closed.collect(n_step=10)
