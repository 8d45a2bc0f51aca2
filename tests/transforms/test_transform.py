"""The transform interface."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service.transforms import Transform
from replay_service.transforms.transform import copied, entry, keys_of


class Doubled(Transform):
    def forward(self, data: Any) -> Any:
        made = copied(self, data)
        return made.set("x", data["x"] * 2)


class Halved(Doubled):
    def inv(self, data: Any) -> Any:
        return copied(self, data).set("x", data["x"] / 2)


def test_without_an_inverse_records_are_stored_as_they_come() -> None:
    data = TensorDict({"x": torch.ones(2)}, [2])
    assert Doubled().inv(data) is data
    assert not Doubled().has_inverse
    assert Halved().has_inverse


def test_it_can_be_called_and_leaves_what_it_was_given_alone() -> None:
    data = TensorDict({"x": torch.ones(2)}, [2])
    assert Doubled()(data)["x"].tolist() == [2, 2]
    assert data["x"].tolist() == [1, 1]


def test_keys_may_be_one_or_several() -> None:
    assert keys_of("in_keys", "a") == [("a",)]
    assert keys_of("in_keys", ("a", "b")) == [("a", "b")]
    assert keys_of("in_keys", ["a", ("b", "c")]) == [("a",), ("b", "c")]
    assert keys_of("in_keys", None, [("d",)]) == [("d",)]
    with pytest.raises(ValueError, match=r"in_keys must name every entry once; got a twice"):
        keys_of("in_keys", ["a", "a"])
    with pytest.raises(TypeError, match="in_keys"):
        keys_of("in_keys", [1])  # type: ignore[list-item]


def test_a_missing_entry_is_named_with_those_there_are() -> None:
    with pytest.raises(KeyError, match=r"next\.reward.*must be an entry.*'x'"):
        entry(TensorDict({"x": torch.ones(2)}, [2]), ("next", "reward"))


def test_other_data_is_refused() -> None:
    with pytest.raises(TypeError, match="TensorDict for Doubled; got Tensor"):
        Doubled()(torch.ones(2))
