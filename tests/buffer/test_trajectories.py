from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from replay_service import LazyTensorStorage, TensorDictReplayBuffer, filter_trajectories, iter_trajectories, traj
from tests.buffer.stored_trajectories import episodes, numbers


def test_ids_are_preferred_to_flags() -> None:
    data = episodes([2, 3])
    data["next", "done"].zero_()
    assert numbers(list(iter_trajectories(data))) == [[0, 1], [2, 3, 4]]
    for key in ("traj_ids", "episode"):
        renamed = data.exclude("collector").set(key, data["collector", "traj_ids"].unsqueeze(-1))
        assert numbers(list(iter_trajectories(renamed))) == [[0, 1], [2, 3, 4]]
    assert numbers(list(iter_trajectories(data, trajectory_key=("next", "done")))) == [[0, 1, 2, 3, 4]]
    assert numbers(list(iter_trajectories(data, trajectory_key="done"))) == [[0, 1, 2, 3, 4]]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=20))
def test_any_flag_ends_a_trajectory(flags: list[tuple[bool, bool, bool]]) -> None:
    names = ("done", "terminated", "truncated")
    columns = {name: torch.tensor([row[i] for row in flags]).unsqueeze(-1) for i, name in enumerate(names)}
    data = TensorDict({"number": torch.arange(len(flags)), "next": columns}, [len(flags)])
    expected: list[list[int]] = [[]]
    for number, row in enumerate(flags):
        expected[-1].append(number)
        if any(row):
            expected.append([])
    assert numbers(list(iter_trajectories(data))) == [walk for walk in expected if walk]


def test_flags_of_several_agents_and_of_steps_without_next() -> None:
    several = torch.tensor([[0, 0], [0, 1], [0, 0]]).bool()
    data = TensorDict({"number": torch.arange(3), "next": {"done": several}}, [3])
    assert numbers(list(iter_trajectories(data))) == [[0, 1], [2]]
    plain = TensorDict({"number": torch.arange(3), "done": torch.tensor([1, 0, 1])}, [3])
    assert numbers(list(iter_trajectories(plain))) == [[0], [1, 2]]
    # With `next`, a flag at the root tells of the step before.
    with pytest.raises(KeyError, match="none of the end flags"):
        list(iter_trajectories(plain.set("next", {"reward": torch.ones(3)})))


def test_trajectories_are_views() -> None:
    data = episodes([2, 3])
    next(iter_trajectories(data)).data["observation"].fill_(-1)
    assert data["observation"][:2].eq(-1).all()
    filter_trajectories(data, traj.length == 3)[0].data["observation"].fill_(-2)
    assert data["observation"][2:].eq(-2).all()


def test_filter() -> None:
    data = episodes([2, 3, 1], [5.0, 5.0, 1.0, 1.0, 1.0, 9.0])
    assert numbers(filter_trajectories(data)) == [[0, 1], [2, 3, 4], [5]]
    assert numbers(filter_trajectories(data, traj.reward.sum() > 5)) == [[0, 1], [5]]
    assert numbers(filter_trajectories(data, lambda t: t.length > 1)) == [[0, 1], [2, 3, 4]]
    by_flag = filter_trajectories(data, traj.length > 1, trajectory_key=("next", "done"))
    assert numbers(by_flag) == [[2, 3], [4, 5]]
    with pytest.raises(TypeError, match="must be true or false"):
        filter_trajectories(data, traj.reward.sum())  # type: ignore[arg-type]


def test_refused_data() -> None:
    assert list(iter_trajectories(episodes([3])[:0])) == []
    assert filter_trajectories(episodes([3])[:0], traj.length > 0) == []
    with pytest.raises(ValueError, match="must have one batch dimension, time"):
        iter_trajectories(episodes([4]).reshape(2, 2))
    with pytest.raises(ValueError, match="must be one trajectory id per step"):
        iter_trajectories(episodes([4]), trajectory_key="observation")
    with pytest.raises(KeyError, match=r"trajectory_key \(nope\) must be one of"):
        iter_trajectories(episodes([4]), trajectory_key="nope")
    with pytest.raises(TypeError, match="must be the name of an entry"):
        iter_trajectories(episodes([4]), trajectory_key=3)  # type: ignore[arg-type]


def test_a_buffer_gives_matches_in_one_piece() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), batch_size=2)
    buffer.extend(episodes([2, 3, 1]))
    matches = buffer.matches(traj.length != 3)
    assert matches.lengths == [2, 1]
    assert matches.steps["number"].tolist() == [0, 1, 5]
    assert numbers(matches.split()) == [[0, 1], [5]]
