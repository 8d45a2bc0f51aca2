"""Only some entries."""

from __future__ import annotations

import pytest

from replay_service.transforms import SelectKeys
from tests.transforms.episode_steps import episode


def test_only_these_are_left() -> None:
    data = episode(3)
    out = SelectKeys("observation", ("next", "reward"))(data)
    assert set(out.keys(True, True)) == {"observation", ("next", "reward")}
    assert ("next", "done") in data.keys(True)
    assert len(list(SelectKeys("next")(data).keys(True, True))) == 5


def test_what_is_missing_is_named() -> None:
    with pytest.raises(KeyError, match=r"next\.value"):
        SelectKeys("observation", ("next", "value"))(episode(3))
    with pytest.raises(TypeError, match="at least one"):
        SelectKeys()
