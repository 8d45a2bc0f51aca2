from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

from clients.collector import CollectStats
from clients.collector_worker import CollectorGroup, CollectorRecipe, spread
from replay_service import LazyTensorStorage, TensorDictReplayBuffer
from replay_service.errors import ReplayError, ReplayTimeoutError, ServiceUnavailableError
from tests.clients.counting import CountingEnv, FailingEnv
from tests.clients.fixed_policy import FixedPolicy
from tests.wire.serving import House

FIVE_STEPS = partial(CountingEnv, 5)
NO_CORES = {"num_cpus": 0}


class Dying(CountingEnv):
    """Takes its process with it."""

    def step(self, action: int) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


class Stuck(CountingEnv):
    """Stops its process at the sixth step, so that nothing in it answers."""

    def step(self, action: int) -> Any:
        if self._steps == 5:
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().step(action)


def recipe(buffer: Any, env: Callable[[], Any] = FIVE_STEPS, **settings: Any) -> CollectorRecipe:
    return CollectorRecipe(
        policy=FixedPolicy, env=env, buffer=buffer, record_version=True, **{"num_envs": 2, **settings}
    )


@pytest.fixture(scope="module")
def owner(guest_house: House) -> Any:
    return guest_house.host(partial(TensorDictReplayBuffer, storage=partial(LazyTensorStorage, 10_000)), "ray")


@pytest.fixture(scope="module")
def group(owner: Any) -> Iterator[CollectorGroup]:
    """Two workers with two environments each, 20 rows per call; the tests go on where the one before left them."""
    made = CollectorGroup(spread(recipe(owner.client()), 2), steps_per_call=20, remote_options=NO_CORES)
    yield made
    made.close()
    made.close()


def finish(group: CollectorGroup) -> list[CollectStats]:
    """Reports of everything that is under way."""
    reports = []
    while group.steps_under_way:
        reports += group.poll(30.0)
    return reports


def test_workers_fill_one_buffer(owner: Any, group: CollectorGroup) -> None:
    before = group.env_steps
    group.admit(before + 40)
    assert group.steps_under_way == 40
    reports = finish(group)
    assert [report.n_collected_steps for report in reports] == [20, 20]
    assert sum(report.n_collected_episodes for report in reports) == 8
    assert group.env_steps == owner.write_count == before + 40
    rows: TensorDictBase = owner.client()[before : before + 40]
    ids = rows["collector", "traj_ids"]
    assert len(ids.unique()) == 8
    for one in ids.unique():
        assert rows["next", "observation"][ids == one][:, 0].tolist() == [1, 2, 3, 4, 5]


def test_admission_bounds_what_is_collected(owner: Any, group: CollectorGroup) -> None:
    before = group.env_steps
    assert group.poll() == []
    group.admit(before)
    assert group.steps_under_way == 0
    for _ in range(2):
        group.admit(before + 1)
        assert group.steps_under_way == 20
    finish(group)
    # The one that has collected least comes first.
    group.admit(before + 21)
    finish(group)
    assert group.env_steps == before + 40
    assert set((owner.client()[before : before + 40]["collector", "traj_ids"] >> 40).tolist()) == {0, 1}


def test_published_weights_reach_the_workers(owner: Any, group: CollectorGroup) -> None:
    versions: set[int] = set()
    for choice in (1, 2):
        assert group.publish(FixedPolicy(choice).weights()) == choice
        versions = set()
        while versions != {choice}:
            # Weights overtake nothing: a worker may need a call until it has seen them.
            group.admit(group.env_steps + 40)
            versions = {report.policy_version for report in finish(group)}
    rows = owner.client()[:]
    assert torch.equal(rows["action"], rows["policy_version"])
    assert set(rows["policy_version"].tolist()) == {0, 1, 2}


def test_what_goes_wrong_in_a_worker_is_an_error_that_names_it(owner: Any) -> None:
    handle = owner.client()
    broken = [
        recipe(handle, partial(FailingEnv, 9), worker=3),
        recipe(handle, partial(Dying, 9), worker=4),
        recipe(handle, num_envs=0, worker=5),
        recipe(handle, partial(Stuck, 99), worker=6),
    ]
    group = CollectorGroup(broken, steps_per_call=10, remote_options=NO_CORES)
    errors: dict[str, ReplayError] = {}
    group.admit(40)
    while len(errors) < 3 or not group.env_steps:
        try:
            group.poll(1.0)
        except ReplayError as error:
            errors[str(error)] = error
        assert group.steps_under_way or len(errors) == 3, errors
    # The last one answered once, so from now on its answers need not wait for a process to start.
    group.timeout_s = 1.0
    group.admit(group.env_steps + 40)
    while len(errors) < 4:
        try:
            group.poll(0.1)
        except ReplayTimeoutError as error:
            errors[str(error)] = error
        except ReplayError:
            pass  # the dead ones, asked again
    group.close()
    texts = sorted(errors)
    kinds = [type(errors[text]) for text in texts]
    assert kinds == [ReplayError, ServiceUnavailableError, ServiceUnavailableError, ReplayTimeoutError]
    assert texts[0] == "collector 3 failed: OSError: the simulator is gone"
    assert texts[1].startswith("collector 4 must be alive and reachable; The actor died")
    assert "collector 5 must be alive and reachable" in texts[2]
    assert "count (0) must be at least 1" in texts[2]
    assert "got no answer from collector 6" in texts[3]


def test_a_worker_that_finds_no_processor_is_an_error_that_says_so(owner: Any) -> None:
    made = CollectorGroup([recipe(owner.client())], remote_options={"num_cpus": 1000}, timeout_s=0.1)
    made.admit(1)
    wants = r"no answer from collector 0, which has collected nothing yet: its actor needs num_cpus 1000 of Ray, where \d+ are"
    with pytest.raises(ReplayTimeoutError, match=wants):
        made.poll(0.2)
    made.close()


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"recipes \(of workers \[\]\) must be at least one"):
        CollectorGroup([])
    with pytest.raises(ValueError, match=r"recipes \(of workers \[0, 0\]\) must be at least one, each of another"):
        CollectorGroup([recipe(None), recipe(None)])
    with pytest.raises(ValueError, match=r"steps_per_call \(0\) must be at least 1"):
        CollectorGroup([recipe(None)], steps_per_call=0)


def test_spread_numbers_workers_and_parts_their_seeds() -> None:
    made = spread(recipe(None, worker=2, seed=5), 3)
    assert [(one.worker, one.seed) for one in made] == [(2, 5), (3, 10_005), (4, 20_005)]
    assert [one.seed for one in spread(recipe(None), 2)] == [None, None]
