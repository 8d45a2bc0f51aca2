from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from clients.actions import ActionMap

BOX = spaces.Box(-2.0, 2.0, (1,))


@pytest.mark.parametrize(
    ("scaling", "method", "act", "taken"),
    [
        (True, "clip", 0.5, 1.0),
        (True, "clip", 3.0, 2.0),
        (True, "tanh", 100.0, 2.0),
        (True, "", 0.5, 1.0),
        (False, "clip", 3.0, 2.0),
        (False, "tanh", 0.0, 0.0),
        (False, "", 3.0, 3.0),
    ],
)
def test_what_the_environment_gets(scaling: bool, method: str, act: float, taken: float) -> None:
    given = ActionMap(BOX, scaling, method).to_environment(torch.tensor([[act]]))
    assert given.tolist() == [[taken]]
    assert given.dtype == BOX.dtype


@pytest.mark.parametrize("scaling", [True, False])
@pytest.mark.parametrize("method", ["clip", "tanh", ""])
def test_the_way_back(scaling: bool, method: str) -> None:
    actions = ActionMap(spaces.Box(np.float32([-1, -3]), np.float32([1, 3])), scaling, method)
    drawn = np.array([[0.5, -0.7], [-0.9, 0.1]]) if method == "tanh" else np.array([[0.5, -2.9], [-1.0, 3.0]])
    assert actions.to_environment(actions.from_environment(drawn)) == pytest.approx(drawn, abs=1e-5)


def test_random_actions_are_stored_at_the_policys_scale() -> None:
    assert ActionMap(BOX).from_environment(np.array([[1.0]])).tolist() == [[0.5]]


def test_bounds_of_a_fixed_action_are_no_division_by_zero() -> None:
    actions = ActionMap(spaces.Box(np.float32([1]), np.float32([1])))
    assert actions.to_environment(actions.from_environment(np.array([[1.0]]))).tolist() == [[1.0]]


@pytest.mark.parametrize("space", [None, spaces.Discrete(3), spaces.Box(0, 9, (1,), dtype=np.int64)])
def test_other_actions_stay_what_they_are(space: Any) -> None:
    act = np.array([[1], [2]])
    assert ActionMap(space).to_environment(act) is act
    assert ActionMap(space).from_environment(act) is act


def test_refused() -> None:
    with pytest.raises(ValueError, match=r"action_bound_method \('fold'\)"):
        ActionMap(BOX, True, "fold")
    with pytest.raises(ValueError, match="without bounds"):
        ActionMap(spaces.Box(-np.inf, np.inf, (1,)))
    ActionMap(spaces.Box(-np.inf, np.inf, (1,)), scaling=False)
