"""Runs of neighbouring steps."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from replay_service.transforms.runs import Runs
from tests.transforms.episode_steps import episodes


def test_runs_end_where_episodes_do() -> None:
    runs = Runs.of(episodes(3, 1, 2)[:-1])
    assert runs.first.tolist() == [0, 0, 0, 3, 4]
    assert runs.last.tolist() == [2, 2, 2, 3, 4]


def test_lines_are_runs_of_their_own() -> None:
    lines = TensorDict({"x": torch.zeros(2, 3)}, [2, 3])
    assert Runs.of(lines).first.tolist() == [0, 0, 0, 3, 3, 3]


@pytest.mark.parametrize(
    "key", [("sequence_id",), ("collector", "traj_ids"), ("collector", "mask"), ("validity_mask",)]
)
def test_what_changes_between_runs_ends_them(key: tuple[str, ...]) -> None:
    value = torch.tensor([0, 0, 1, 1])
    data = TensorDict(
        {key: value.bool() if "mask" in key[-1] else value, ("next", "done"): torch.zeros(4, 1).bool()}, [4]
    )
    assert Runs.of(data).last.tolist() == [1, 1, 3, 3]


def test_flags_at_the_root_count_where_there_is_no_next() -> None:
    flag = torch.tensor([False, True, False])
    assert Runs.of(TensorDict({"done": flag}, [3])).last.tolist() == [1, 1, 2]
    assert Runs.of(TensorDict({"done": flag, "next": {"done": ~flag}}, [3])).last.tolist() == [0, 2, 2]
    assert Runs.of(TensorDict({"end": flag}, [3]), [("end",)]).last.tolist() == [1, 1, 2]


def test_steps_without_a_mark_are_refused() -> None:
    with pytest.raises(KeyError, match="must name what says where trajectories end"):
        Runs.of(TensorDict({"x": torch.zeros(3)}, [3]))
    with pytest.raises(KeyError, match=r"key \(end\)"):
        Runs.of(episodes(3), [("end",)])


def test_no_steps_have_no_runs() -> None:
    assert Runs.of(episodes(3)[:0]).first.tolist() == []
    assert Runs.of(episodes(3)[:0]).last.tolist() == []
