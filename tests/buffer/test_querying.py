from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict, lazy_stack

from replay_service import (
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    TensorDictReplayBuffer,
    TensorStorage,
    Trajectory,
    TrajectoryPredicate,
    traj,
)
from tests.buffer.stored_trajectories import Step, episodes, numbers, ring_buffer, steps_batch, walked

Walk = list[Step]

PREDICATES: list[tuple[Any, Callable[[Walk], bool]]] = [
    (None, lambda walk: True),
    (traj.reward.sum() > 3, lambda walk: sum(s.reward for s in walk) > 3),
    (traj.total_reward <= 0, lambda walk: sum(s.reward for s in walk) <= 0),
    (traj.reward.mean() >= 1, lambda walk: sum(s.reward for s in walk) >= len(walk)),
    (traj["next", "reward"].max() == 2, lambda walk: max(s.reward for s in walk) == 2),
    (traj.reward.min() != -2, lambda walk: min(s.reward for s in walk) != -2),
    (traj.length < 3, lambda walk: len(walk) < 3),
    (traj.number.first() > 20, lambda walk: walk[0].number > 20),
    (traj.number.last() <= 30, lambda walk: walk[-1].number <= 30),
    ((traj.reward == 2).any(), lambda walk: any(s.reward == 2 for s in walk)),
    ((traj.reward > -2).all(), lambda walk: all(s.reward > -2 for s in walk)),
    (traj.reward.all(), lambda walk: all(s.reward != 0 for s in walk)),
    (
        (traj.reward > traj.reward.mean()).any() & ~(traj.length > 4),
        lambda walk: any(s.reward * len(walk) > sum(r.reward for r in walk) for s in walk) and len(walk) <= 4,
    ),
    (
        ((traj.reward > 0) & (traj.number < traj.length)).any() | (traj.observation.sum() != 0),
        lambda walk: any(s.reward > 0 and s.number < len(walk) for s in walk),
    ),
    (lambda t: t.reward.sum() > 3, lambda walk: sum(s.reward for s in walk) > 3),
]


@st.composite
def rings(draw: st.DrawFn) -> tuple[list[list[Step]], int, bool, int]:
    lanes = draw(st.integers(1, 3))
    slots = draw(st.integers(1, 12))
    written = draw(st.integers(1, 30))
    columns = []
    for lane in range(lanes):
        ends = draw(st.lists(st.booleans(), min_size=written, max_size=written))
        rewards = draw(st.lists(st.integers(-2, 2), min_size=written, max_size=written))
        episode, column = 100 * lane, []
        for t, (end, reward) in enumerate(zip(ends, rewards, strict=True)):
            column.append(Step(t * lanes + lane, episode, reward, end))
            # Ids may come back: two live at the same time would be one trajectory only if they were neighbours.
            episode = 100 * lane + (episode + 1) % 3 if end else episode
        columns.append(column)
    rows = [list(row) for row in zip(*columns, strict=True)]
    return rows, slots, draw(st.booleans()), draw(st.integers(1, 7))


@settings(max_examples=80, deadline=None)
@given(rings())
def test_queries_agree_with_a_walk_over_the_steps(ring: tuple[list[list[Step]], int, bool, int]) -> None:
    steps, slots, by_ids, chunk = ring
    buffer = ring_buffer(steps, slots, by_ids, chunk)
    stored = walked(steps, slots, by_ids)
    for predicate, wanted in PREDICATES:
        expected = [walk for walk in stored if wanted(walk)]
        found = buffer.query(predicate)
        assert numbers(found) == [[step.number for step in walk] for walk in expected], predicate
        assert [t.length for t in found] == [len(walk) for walk in expected]
        for trajectory, walk in zip(found, expected, strict=True):
            assert trajectory.reward.flatten().tolist() == [step.reward for step in walk]


def full_buffer(data: Any = None, capacity: int = 200) -> ReplayBuffer:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=4)
    buffer.extend(episodes([3, 5, 2]) if data is None else data)
    return buffer


def test_the_documented_example() -> None:
    buffer = full_buffer(episodes([60, 40, 55], [2.0] * 60 + [9.0] * 40 + [1.0] * 55))
    good = buffer.query((traj.reward.sum() > 100) & (traj.length >= 50))
    assert [t.length for t in good] == [60]
    assert good[0].observation.shape == (60, 2)
    assert good[0].total_reward == 120


def test_matches_are_copies_that_can_be_stacked() -> None:
    buffer = full_buffer()
    found = buffer.query(traj.length > 2)
    ragged = lazy_stack(found)
    assert [ragged[i].length for i in range(2)] == [3, 5]
    found[0].data["observation"].fill_(-1)
    assert buffer[:]["observation"].min() >= 0


def test_trajectories_over_the_edge_come_in_one_piece_and_in_order() -> None:
    buffer = full_buffer(episodes([3, 5, 2]), capacity=8)
    found = buffer.query()
    assert numbers(found) == [[2], [3, 4, 5, 6, 7], [8, 9]]
    buffer.extend(episodes([3, 5, 2])[:3])
    assert [t.length for t in buffer.query()] == [3, 2, 3]


def test_an_empty_buffer_and_a_query_without_matches_give_an_empty_list() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=2)
    assert buffer.query(traj.nothing.sum() > 1) == []
    buffer.extend(episodes([4]))
    assert buffer.query(traj.length > 100) == []
    buffer.empty()
    assert buffer.query() == []


@pytest.mark.parametrize(
    ("predicate", "kind", "words"),
    [
        (traj.nope.sum() > 1, KeyError, r"entry \(nope\) must be one of .*'next.reward'.*'observation'"),
        (traj.next.sum() > 1, KeyError, "holds other entries"),
        (traj.reward.sum(), TypeError, "must be true or false; compare it"),
        (traj.reward, TypeError, "must be true or false; compare it"),
        (traj, TypeError, "must be true or false; compare it"),
        (traj.reward > 1, TypeError, r"reduce it by \.any\(\) or \.all\(\)"),
        (lambda t: t.reward.sum() > 1 and traj.reward > 1, TypeError, "to be true or false"),
        (5, TypeError, "must be made of traj"),
        (traj.observation.first() > 1, ValueError, "must be one number; got 2 per step"),
        (TrajectoryPredicate(lambda t: True, keys=["nope"]), KeyError, r"keys \(nope\) must be among"),
    ],
)
def test_refused_predicates(predicate: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        full_buffer().query(predicate)


def test_steps_of_different_widths_are_not_compared() -> None:
    data = episodes([3]).set("wide", torch.zeros(3, 3))
    with pytest.raises(ValueError, match="got 3 and 2 per step"):
        full_buffer(data).query((traj.wide > traj.observation).any())


def test_an_own_id_key_is_used_and_an_unknown_one_is_refused() -> None:
    data = episodes([3, 5]).set("owner", torch.tensor([0, 0, 1, 1, 1, 1, 1, 1]))
    buffer = full_buffer(data)
    assert [t.length for t in buffer.query(trajectory_key="owner")] == [2, 6]
    with pytest.raises(KeyError, match=r"trajectory_key \(nope\) must be one of .*'owner'"):
        buffer.query(trajectory_key="nope")


def test_steps_without_marks_are_refused() -> None:
    with pytest.raises(KeyError, match=r"must name the entry with trajectory ids.*collector\.traj_ids.*next\.done"):
        full_buffer(TensorDict({"x": torch.arange(4)}, [4])).query()


def test_records_without_names_are_refused() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(8), batch_size=2)
    buffer.extend(torch.arange(4))
    with pytest.raises(TypeError, match="so that their entries have names"):
        buffer.query()


@pytest.mark.parametrize("as_type", ["tensordict", "dict", "list storage", "existing tensors"])
def test_every_kind_of_storage(as_type: str) -> None:
    data = episodes([3, 5, 2])
    if as_type == "existing tensors":
        buffer = ReplayBuffer(storage=TensorStorage(data), batch_size=2)
    else:
        storage = ListStorage(20) if as_type == "list storage" else LazyTensorStorage(20)
        buffer = ReplayBuffer(storage=storage, batch_size=2)
        buffer.extend(data.to_dict() if as_type == "dict" else data)
    found = buffer.query(traj.reward.sum() >= 3)
    assert all(isinstance(t, Trajectory) for t in found)
    assert numbers(found) == [[0, 1, 2], [3, 4, 5, 6, 7]]


def test_several_dimensions_of_lanes() -> None:
    steps = steps_batch([[Step(t * 6 + lane, 0, 1, t == lane % 4) for lane in range(6)] for t in range(4)], False)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(24, ndim=3), dim_extend=0, batch_size=2)
    buffer.extend(steps.reshape(4, 2, 3))
    found = buffer.query()
    assert found[0].number.tolist() == [0]
    assert found[1].number.tolist() == [6, 12, 18]
    assert [t.number[0].item() % 6 for t in found] == sorted(t.number[0].item() % 6 for t in found)


def test_a_function_is_given_only_the_entries_it_names() -> None:
    seen = []

    def wants(trajectory: Trajectory) -> bool:
        seen.append(sorted(trajectory.keys()))
        return trajectory.reward.sum().item() > 2

    found = full_buffer().query(TrajectoryPredicate(wants, keys=["reward"]))
    assert [t.length for t in found] == [3, 5]
    assert seen == [["next"]] * 3
    assert found[0].observation.shape == (3, 2)
