from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from tensordict import TensorDict, is_tensorclass, lazy_stack, tensorclass

from replay_service import Trajectory
from replay_service.buffer.trajectory import as_key, as_steps, trajectory_spec
from replay_service.structure import build, flatten_rows
from tests.buffer.stored_trajectories import episodes


def trajectory(length: int = 4) -> Trajectory:
    data = episodes([length])
    data["done"] = torch.zeros(length, 1, dtype=torch.bool)
    return Trajectory(data)


def test_entries_are_found_at_the_root_first_and_then_under_next() -> None:
    t = trajectory()
    assert t.observation is t.data["observation"]
    assert torch.equal(t.reward, t.data["next", "reward"])
    assert not t.done.any()  # the root's own
    assert t["next", "done"].sum() == 1
    assert torch.equal(t["reward"], t.reward)
    assert torch.equal(t[("collector", "traj_ids")], t.data["collector", "traj_ids"])
    assert torch.equal(t.get("reward"), t.reward)
    assert t.get("nope", 7) == 7
    assert t.get(("observation", "nope")) is None
    assert set(t.keys()) == {"observation", "number", "collector", "next", "done"}
    assert ("next", "reward") in t.keys(True, True)


def test_unknown_entries_name_those_that_exist() -> None:
    with pytest.raises(
        AttributeError, match=r"attribute \(nope\) must be one of .*'collector.traj_ids'.*'next.reward'"
    ):
        _ = trajectory().nope
    with pytest.raises(KeyError, match=r"key \(a\.b\) must be one of .*'next.reward'"):
        _ = trajectory()["a", "b"]
    with pytest.raises(KeyError, match="must be one of"):
        _ = Trajectory(TensorDict({"x": torch.zeros(2)}, [2])).total_reward


def test_length_and_total_reward() -> None:
    assert trajectory(4).length == len(trajectory(4)) == 4
    assert trajectory(4).total_reward == 4
    assert trajectory(4)[0].length == 1


def test_slices_and_stacks_are_trajectories() -> None:
    t = trajectory(5)
    assert is_tensorclass(t)
    for part, wanted in ((t[1:3], [1, 2]), (t[torch.tensor([4, 0])], [4, 0]), (t[t.number > 2], [3, 4])):
        assert type(part) is Trajectory
        assert part.number.tolist() == wanted
        assert part.length == len(wanted)
    assert type(t[2]) is Trajectory
    ragged = lazy_stack([t, t[:2]])
    assert [ragged[0].length, ragged[1].length] == [5, 2]
    assert type(ragged[1]) is Trajectory
    assert "batch_size=[2, -1]" in repr(ragged)
    assert repr(t).startswith("Trajectory(length=5, entries=['collector.traj_ids', 'done',")


def test_copies_and_pickles() -> None:
    t = trajectory()
    for again in (t.clone(), pickle.loads(pickle.dumps(t)), Trajectory.from_tensordict(t.to_tensordict())):
        assert type(again) is Trajectory
        assert bool((again.data == t.data).all())
        assert again.length == 4


def test_the_spec_puts_a_trajectory_together_without_naming_its_class() -> None:
    rows = flatten_rows(trajectory().data)
    again = build(trajectory_spec(rows.spec), rows.tensors, (rows.count,))
    assert type(again) is Trajectory
    assert torch.equal(again.reward, trajectory().reward)


@tensorclass
class Stored:
    number: torch.Tensor
    inner: TensorDict


def test_steps_may_be_any_kind_of_named_records() -> None:
    inner = TensorDict({"reward": torch.ones(3)}, [3])
    forms: list[Any] = [
        TensorDict({"number": torch.arange(3), "inner": inner}, [3]),
        {"number": torch.arange(3), "inner": {"reward": torch.ones(3)}},
        Stored(number=torch.arange(3), inner=inner, batch_size=[3]),
        Trajectory(TensorDict({"number": torch.arange(3), "inner": inner}, [3])),
    ]
    for form in forms:
        steps = as_steps(form)
        assert type(steps) is TensorDict
        assert steps.batch_size == (3,)
        assert steps["number"].tolist() == [0, 1, 2]
        assert steps["inner", "reward"].sum() == 3
    for bare in (torch.arange(3), [1, 2], {}, {"a": 1}):
        with pytest.raises(TypeError, match="so that their entries have names"):
            as_steps(bare)


def test_keys() -> None:
    assert as_key("key", "a") == ("a",)
    assert as_key("key", (("a", "b"), "c")) == ("a", "b", "c")
    for wrong in (5, (), ("a", 5), None):
        with pytest.raises(TypeError, match="must be the name of an entry"):
            as_key("key", wrong)
