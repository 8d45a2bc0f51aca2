from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from replay_service import Trajectory, TrajectoryPredicate, filter_trajectories, traj
from replay_service.buffer.query import StepTruth, as_predicate
from tests.buffer.stored_trajectories import episodes


def one(**entries: Any) -> Trajectory:
    tensors = {name: torch.as_tensor(value) for name, value in entries.items()}
    return Trajectory(TensorDict(tensors, batch_size=[len(next(iter(tensors.values())))]))


def test_expressions_show_what_was_written() -> None:
    predicate = (traj.reward.sum() > 100) & ~(traj.length < 5) | (traj["collector", "mask"] == 1).any()
    assert repr(predicate) == (
        "(((traj.reward.sum() > 100) & ~(traj.length < 5)) | (traj['collector', 'mask'] == 1).any())"
    )
    assert repr(traj.collector["mask"]) == repr(traj["collector", "mask"]) == repr(traj[("collector", "mask")])
    assert repr(traj["not an identifier"]) == "traj['not an identifier']"
    assert repr(traj.total_reward) == "traj.reward.sum()"
    assert repr(traj.length > 100) == "(traj.length > 100)"
    assert repr(~~(traj.length > 1)) == "(traj.length > 1)"
    assert repr(traj) == "traj"


def test_required_keys() -> None:
    predicate = (traj.reward.sum() > traj.length) & (traj["next", "obs"].first() == 1)
    assert predicate.required_keys() == {"reward", ("next", "obs")}
    assert (traj.length > 2).required_keys() == frozenset()
    assert TrajectoryPredicate(lambda t: True).required_keys() is None
    assert TrajectoryPredicate(lambda t: True, keys=["a", ("b", "c")]).required_keys() == {"a", ("b", "c")}
    assert (predicate & (lambda t: True)).required_keys() is None


@pytest.mark.parametrize(
    ("predicate", "answer"),
    [
        (traj.x.sum() == 6, True),
        (traj.x.mean() == 2, True),
        (traj.x.max() == 3, True),
        (traj.x.min() >= 2, False),
        (traj.x.first() != 1, False),
        (traj.x.last() < 3, False),
        (traj.x.last() <= 3, True),
        (traj.length == 3, True),
        ((traj.x > 2).any(), True),
        ((traj.x > 2).all(), False),
        ((traj.x > traj.y).all(), False),
        ((traj.x >= traj.y).any(), True),
        ((traj.x > traj.x.mean()).any(), True),
        ((traj.x.mean() > traj.x).any(), True),
        ((traj.x.mean() < traj.x).all(), False),
        (((traj.x > 1) & (traj.y > 1)).any(), True),
        (((traj.x > 1) | (traj.y > 1)).all(), True),
        ((~(traj.x > 1)).any(), True),
        (traj.flag.any(), True),
        (traj.flag.all(), False),
        ((traj.flag == True).any(), True),  # noqa: E712 - an expression, not a truth
        (traj.flag.sum() == 2, True),
        (traj.wide.sum() == 15, True),
        (traj.wide.mean() == 2.5, True),
        (traj.wide.max() == 5, True),
        ((traj.wide > traj.wide.mean()).any(), True),
        ((traj.wide >= traj.x).all(), False),
        ((traj.x.sum() > 1) & (lambda t: t.length == 3), True),
        ((traj.x.sum() > 1) & (lambda t: t.length == 4), False),
    ],
)
def test_answers(predicate: TrajectoryPredicate, answer: bool) -> None:
    trajectory = one(x=[1.0, 2.0, 3.0], y=[3, 2, 3], flag=[True, False, True], wide=torch.arange(6.0).reshape(3, 2))
    assert predicate(trajectory) is answer
    assert predicate(trajectory.data) is answer
    assert (~predicate)(trajectory) is not answer
    if not predicate.runs_code():
        assert TrajectoryPredicate.from_json(json.loads(json.dumps(predicate.to_json())))(trajectory) is answer


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_float_columns_are_compared_as_what_they_hold(dtype: torch.dtype) -> None:
    trajectory = one(x=torch.tensor([0.1, 0.1], dtype=dtype))
    number = trajectory.x[0]
    assert (traj.x.max() == number)(trajectory)
    assert (traj.x.sum() == number * 2)(trajectory)
    assert (traj.x.mean() == number)(trajectory)
    if dtype == torch.float32:
        assert (traj.x.first() == 0.1)(trajectory)
        assert (traj.x.mean() == 0.1)(trajectory)


def test_sums_lose_nothing_on_the_way() -> None:
    many = torch.full((200_000,), 0.1)
    many[0] = 2.0**24
    exact = float(many.double().sum())
    assert (traj.x.sum() == torch.tensor(exact, dtype=torch.float32))(one(x=many))
    assert (traj.x.sum() == 510)(one(x=torch.full((2,), 255, dtype=torch.uint8)))
    assert (traj.x.max() == 2**64 - 1)(one(x=torch.tensor([2**64 - 1, 1], dtype=torch.uint64)))
    assert (traj.x.sum() == 2**62)(one(x=torch.full((2,), 2**61)))


def test_nan_and_infinity() -> None:
    trajectory = one(x=[1.0, float("nan"), float("inf")])
    assert not (traj.x.max() > 0)(trajectory)
    assert (traj.x.sum() != traj.x.sum())(trajectory)
    assert (traj.x == float("inf")).any()(trajectory)
    assert (
        TrajectoryPredicate.from_json(json.loads(json.dumps((traj.x < float("inf")).all().to_json())))(trajectory)
        is False
    )


@pytest.mark.parametrize(
    "other", [np.float32(2), np.int64(2), torch.tensor(2), torch.tensor([2.0]), np.array(2), 2, 2.0]
)
def test_constants(other: Any) -> None:
    assert (traj.x.sum() == other)(one(x=[1.0, 1.0]))
    assert (traj.x == other).any().to_json() == ["any", ["==", ["field", ["x"]], ["number", 2]]]


@pytest.mark.parametrize("other", ["2", None, [2], 2j, torch.zeros(2), traj, traj.length > 2, (traj.x > 2)])
def test_other_constants_are_refused(other: Any) -> None:
    with pytest.raises(TypeError, match="other side of a comparison"):
        _ = traj.x.sum() > other


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: traj.x > 1 and traj.length > 2, "write & | ~ instead of and, or, not"),
        (lambda: 0 < traj.length < 5, "instead of chained comparisons"),
        (lambda: bool(traj.x), "to be true or false"),
        (lambda: (traj.length > 1) & (traj.x > 1), r"reduce by \.any\(\) or \.all\(\) first"),
        (lambda: (traj.x > 1) | (traj.length > 1), "must be a truth about the same step"),
        (lambda: (traj.length > 1) & traj.length, "compare it first, with parentheses"),
        (lambda: (traj.length > 1) & 5, "must be an expression; got int"),
        (lambda: (traj.x > 1) & (lambda t: True), "must be an expression; got function"),
        (lambda: TrajectoryPredicate(5), r"fn \(5\) must be a function"),  # type: ignore[arg-type]
        (lambda: traj[5], "must be the name of an entry"),
        (lambda: traj.x[5], "must be the name of an entry"),
        (lambda: TrajectoryPredicate(lambda t: True).to_json(), "must be made of traj alone"),
        (lambda: traj.length.to_json(), "must be true or false; compare it"),
        (lambda: (traj.x > 1).to_json(), "reduce it by"),
        (lambda: as_predicate(traj), "must be true or false"),
        (lambda: as_predicate("x"), "must be made of traj, or a function"),
    ],
)
def test_mistakes_say_how_to_write_it(build: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        build()


def test_refused_trajectories_and_json() -> None:
    predicate = traj.x.sum() > 1
    with pytest.raises(ValueError, match="at least one step"):
        predicate(one(x=torch.zeros(0)))
    with pytest.raises(TypeError, match="must be a tensor of real numbers"):
        predicate(one(x=torch.zeros(2, dtype=torch.complex64)))
    with pytest.raises(ValueError, match="must hold numbers"):
        predicate(one(x=torch.zeros(2, 0)))
    with pytest.raises(KeyError, match=r"entry \(x\) must be one of \['y'\]"):
        predicate(one(y=[1]))
    for value in (["length"], [">", ["field", ["x"]], ["number", 1]]):
        with pytest.raises(ValueError, match="must be true or false of a trajectory"):
            TrajectoryPredicate.from_json(value)


def test_predicates_can_be_copied_and_pickled() -> None:
    predicate = (traj.x.sum() > 1) & (traj.length < 9)
    for again in (pickle.loads(pickle.dumps(predicate)), copy.deepcopy(predicate)):
        assert repr(again) == repr(predicate)
        assert again(one(x=[1.0, 1.0]))
    assert repr(copy.copy(traj).x) == "traj.x"
    assert isinstance(traj.x > 1, StepTruth)


def test_long_chains_stay_flat() -> None:
    predicate = traj.length == 0
    for length in range(1, 3000):
        predicate |= traj.length == length
    again = TrajectoryPredicate.from_json(predicate.to_json())
    assert len(filter_trajectories(episodes([1, 2, 3]), again)) == 3
