"""Other names."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from replay_service.transforms import RenameKeys


def test_names_change_and_change_back() -> None:
    rename = RenameKeys(["a", ("n", "r")], [("n", "a"), "r"], in_keys_inv="a", out_keys_inv="x")
    data = TensorDict({"a": torch.zeros(2), "n": {"r": torch.ones(2)}}, [2])
    out = rename(data)
    assert set(out.keys(True, True)) == {("n", "a"), "r"}
    assert set(data.keys(True, True)) == {"a", ("n", "r")}
    assert set(rename.inv(TensorDict({"x": torch.zeros(2)}, [2])).keys()) == {"a"}
    assert rename.has_inverse
    assert not RenameKeys("a", "b").has_inverse


def test_two_can_change_places_and_copies_can_stay() -> None:
    data = TensorDict({"a": torch.zeros(2), "b": torch.ones(2)}, [2])
    out = RenameKeys(["a", "b"], ["b", "a"])(data)
    assert (out["a"][0], out["b"][0]) == (1, 0)
    assert set(RenameKeys("a", "c", create_copy=True)(data).keys()) == {"a", "b", "c"}


def test_a_level_moves_as_a_whole() -> None:
    data = TensorDict({"n": {"r": torch.ones(2), "s": torch.ones(2)}}, [2])
    assert set(RenameKeys("n", "m")(data).keys(True, True)) == {("m", "r"), ("m", "s")}


def test_wrong_names_are_refused() -> None:
    with pytest.raises(ValueError, match="1 old, 2 new"):
        RenameKeys("a", ["b", "c"])
    with pytest.raises(KeyError, match=r"key \(z\)"):
        RenameKeys("z", "b")(TensorDict({"a": torch.zeros(2)}, [2]))
