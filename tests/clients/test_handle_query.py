"""`query` through a handle: the expression travels as data, and only the matches come back."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import NonTensorData, TensorDict, lazy_stack

from clients import ReplayClient
from replay_service import (
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    TensorDictReplayBuffer,
    Trajectory,
    TrajectoryPredicate,
    traj,
)
from replay_service.records import ServiceAddress
from replay_service.service.dispatch import Dispatch
from replay_service.wire.inproc import InprocChannel
from tests.buffer.stored_trajectories import episodes, numbers
from tests.wire.serving import House

PREDICATES = [
    None,
    traj.reward.sum() > 2,
    (traj.reward.sum() > 2) & ~(traj.length >= 5),
    (traj["next", "reward"] > traj.reward.mean()).any() | (traj.length == 2),
    traj.number.first() <= 3.5,
    traj.total_reward > float("inf"),
    traj.done.any(),
]


def handle_on(buffer: ReplayBuffer, **settings: Any) -> ReplayClient:
    address = ServiceAddress("near", "tests", buffer.batch_size, "auto")
    return ReplayClient(address, InprocChannel(Dispatch(buffer, **settings).serve))


def buffer_of(lengths: list[int], rewards: list[float] | None = None, capacity: int = 30) -> ReplayBuffer:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=4)
    buffer.extend(episodes(lengths, rewards))
    return buffer


def assert_same(found: list[Any], expected: list[Trajectory]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert type(one) is Trajectory
        assert set(one.keys(True, True)) == set(other.keys(True, True))
        assert bool((one.data == other.data).all())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=9), st.data())
def test_a_handle_finds_what_the_buffer_finds(lengths: list[int], data: st.DataObject) -> None:
    total = sum(lengths)
    rewards = data.draw(st.lists(st.integers(-2, 3).map(float), min_size=total, max_size=total))
    buffer = buffer_of(lengths, rewards)
    client = handle_on(buffer)
    for predicate in PREDICATES:
        assert_same(client.query(predicate), buffer.query(predicate))
        assert_same(
            client.query(predicate, trajectory_key=("next", "done")),
            buffer.query(predicate, trajectory_key=("next", "done")),
        )


def test_what_comes_back_is_the_callers_own() -> None:
    client = handle_on(buffer_of([3, 5, 2]))
    first = client.query(traj.length > 2)
    first[0].data["observation"].fill_(-1)
    second = client.query(traj.length > 2)
    assert numbers(first) == numbers(second) == [[0, 1, 2], [3, 4, 5, 6, 7]]
    assert second[0].observation.min() >= 0
    assert lazy_stack(second)[1].length == 5
    assert first[0][1:].number.tolist() == [1, 2]


def test_nothing_found_is_an_empty_list() -> None:
    assert handle_on(buffer_of([3])).query(traj.length > 3) == []
    assert handle_on(TensorDictReplayBuffer(storage=LazyTensorStorage(3), batch_size=1)).query() == []


@pytest.mark.parametrize("as_dict", [True, False])
def test_records_of_any_dense_form(as_dict: bool) -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(20) if as_dict else ListStorage(20), batch_size=2)
    data = episodes([3, 5])
    buffer.extend(data.to_dict() if as_dict else data)
    assert_same(handle_on(buffer).query(traj.length == 5), buffer.query(traj.length == 5))


def test_records_with_texts_travel_as_objects() -> None:
    buffer = ReplayBuffer(storage=ListStorage(20), batch_size=2)
    buffer.extend([TensorDict({"step": t, "name": NonTensorData(f"s{t}"), "episode": t // 2}) for t in range(4)])
    found = handle_on(buffer).query(traj.step.first() == 2)
    assert [t.step.tolist() for t in found] == [[2, 3]]
    assert list(found[0].data["name"]) == ["s2", "s3"]


@pytest.mark.parametrize(
    ("predicate", "kind", "words"),
    [
        (traj.nope.sum() > 1, KeyError, r"entry \(nope\) must be one of .*'next.reward'"),
        (traj.reward > 1, TypeError, r"reduce it by \.any\(\) or \.all\(\)"),
        (traj.reward.sum(), TypeError, "must be true or false; compare it"),
        (traj, TypeError, "must be true or false; compare it"),
        (5, TypeError, "must be made of traj, or a function"),
        (lambda t: True, TypeError, "runs no code of its clients.*allow_callables=True"),
        (TrajectoryPredicate(lambda t: True), TypeError, "runs no code of its clients"),
        ((traj.length > 1) & (lambda t: True), TypeError, "runs no code of its clients"),
    ],
)
def test_refused_predicates(predicate: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        handle_on(buffer_of([3])).query(predicate)


def test_refused_keys() -> None:
    client = handle_on(buffer_of([3]))
    with pytest.raises(TypeError, match="must be the name of an entry"):
        client.query(trajectory_key=5)  # type: ignore[arg-type]
    with pytest.raises(KeyError, match=r"trajectory_key \(nope\) must be one of"):
        client.query(trajectory_key="nope")


def test_functions_run_where_the_operator_allows_it() -> None:
    client = handle_on(buffer_of([3, 5, 2]), allow_callables=True)
    assert numbers(client.query(lambda t: t.reward.sum() == 3)) == [[0, 1, 2]]
    assert numbers(client.query((traj.length < 4) & (lambda t: t.number[0].item() > 0))) == [[8, 9]]


def test_a_hosted_buffer(guest_house: House) -> None:
    recipe = partial(TensorDictReplayBuffer, storage=_storage, batch_size=4)
    owner = guest_house.host(recipe, allow_callables=True)
    with owner.client() as client:
        client.extend(episodes([40, 60, 30]))  # into 100 slots: the first 30 steps are overwritten
        assert numbers(client.query(traj.number.last() > 40)) == [list(range(40, 100)), list(range(100, 130))]
        assert numbers(owner.query((traj.reward.sum() == 10) & traj.done.any())) == [list(range(30, 40))]
        assert client.stats()["service"]["verbs"]["query"]["route"] == "distributed"
        with pytest.raises(TypeError, match=r"reduce it by \.any\(\)"):
            client.query(traj.reward > 1)
        # Code is no tensor: it takes the other way.
        assert numbers(client.query(lambda t: t.length == 60)) == [list(range(40, 100))]
        assert client.stats()["service"]["verbs"]["query"]["route"] == "ray"


def _storage() -> LazyTensorStorage:
    return LazyTensorStorage(100)
