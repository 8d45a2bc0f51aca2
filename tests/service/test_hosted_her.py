"""Goals in hindsight, given where the rows are, through handles of both transports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from clients import ReplayClient
from replay_service import (
    EmptyBufferError,
    HERReplayBuffer,
    LayoutError,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RayReplayBuffer,
    TensorDictRoundRobinWriter,
)
from tests.buffer.goal_rows import assert_relabelled, distance, goal_rows
from tests.conftest import RaySession

PLACE = {"remote_config": {"num_cpus": 0}}


@pytest.fixture(scope="module")
def owner(ray_session: RaySession) -> Iterator[Any]:
    with HERReplayBuffer(
        distance,
        storage=partial(LazyTensorStorage, 40),
        sampler=partial(PrioritizedSampler, 40, 1.0, 1.0),
        writer=partial(TensorDictRoundRobinWriter, track_generations=True),
        batch_size=32,
        service_backend="ray",
        service_backend_options={"namespace": ray_session.namespace, **PLACE},
    ) as owner:
        yield owner


@pytest.fixture(params=["ray", "distributed"])
def client(request: pytest.FixtureRequest, owner: Any) -> Iterator[ReplayClient]:
    """A handle of each transport; the buffer is new."""
    owner.set_storage(LazyTensorStorage(40))
    owner.empty()
    with ReplayClient(replace(owner.address, transport=request.param)) as client:
        yield client


def test_samples_are_relabelled_around_the_ring_and_rows_stay(client: ReplayClient) -> None:
    with pytest.raises(EmptyBufferError):
        client.sample()
    shares = []
    for number in range(9):
        # The newest episode is not over yet; its second half comes with the next call.
        first, second = goal_rows([7], first=number).split([4, 3])
        client.extend(first)
        assert_relabelled(client.sample())
        client.extend(second)
        before = client[:]
        sample, info = client.sample(200, return_info=True)
        shares.append(assert_relabelled(sample).float().mean())
        assert torch.equal(info["goal_index"], sample["goal_index"])
        assert bool((client[:] == before).all())
    assert 0.7 < float(torch.stack(shares).mean()) < 0.9

    sample["td_error"] = torch.ones(200)
    client.extend(goal_rows([7], first=20))
    updated = client.update_tensordict_priority(sample).updated
    assert 0 < int(updated.sum()) < 200, "rows that were overwritten since are skipped"


def test_it_goes_on_after_a_reload(owner: Any, client: ReplayClient) -> None:
    client.extend(goal_rows([30, 30], closed=False))
    state = owner.state_dict()
    drawn = [client.sample() for _ in range(3)]
    client.extend(goal_rows([25], first=5))
    owner.load_state_dict(state)
    for sample in drawn:
        again = client.sample()
        assert_relabelled(again)
        assert bool((again == sample).all())


def test_what_does_not_fit_is_told_to_the_client(owner: Any, client: ReplayClient) -> None:
    rows = goal_rows([4]).exclude("achieved_goal")
    client.extend(rows)
    with pytest.raises(KeyError, match=r"achieved_goal_key \(achieved_goal\) must be a stored entry"):
        client.sample()
    owner.set_storage(LazyTensorStorage(40))
    client.extend(goal_rows([4]))
    assert_relabelled(client.sample())


def test_an_owner_of_its_own_and_records_that_are_objects(ray_session: RaySession) -> None:
    with RayReplayBuffer(
        lambda rows: rows["achieved_goal"],  # of the wrong shape
        replay_buffer_cls=HERReplayBuffer,
        her_ratio=1.0,
        strategy="final",
        storage=partial(ListStorage, 30),
        batch_size=16,
        namespace=ray_session.namespace,
        **PLACE,
    ) as owner:
        client = owner.client()
        client.extend(goal_rows([5]))
        with pytest.raises(LayoutError, match=r"reward_fn must return float32\[16, 1\]"):
            client.sample()
