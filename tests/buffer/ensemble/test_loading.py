"""States of several parts: all or none."""

from __future__ import annotations

from typing import Any

import pytest

from replay_service.buffer.ensemble.loading import load_each, states_of


class _Number:
    def __init__(self, value: int) -> None:
        self.value = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict["value"] < 0:
            raise ValueError("value must not be negative")
        self.value = state_dict["value"]


def test_states_come_back() -> None:
    parts = [_Number(1), _Number(2), _Number(3)]
    state = states_of(parts)
    others = [_Number(0), _Number(0), _Number(0)]
    load_each(others, state)
    assert [part.value for part in others] == [1, 2, 3]


@pytest.mark.parametrize(
    ("states", "error"),
    [
        ({"0": {"value": 7}, "1": {"value": 8}, "2": {"value": -1}}, ValueError),
        ({"0": {"value": 7}, "1": {"value": -1}, "2": {"value": 8}}, ValueError),
        ({"0": {"value": 7}, "1": {"value": 8}}, KeyError),
        ({str(place): {"value": 7} for place in range(4)}, ValueError),
    ],
)
def test_what_is_refused_changes_nothing(states: dict[str, Any], error: type[Exception]) -> None:
    parts = [_Number(1), _Number(2), _Number(3)]
    with pytest.raises(error):
        load_each(parts, states)
    assert [part.value for part in parts] == [1, 2, 3]
