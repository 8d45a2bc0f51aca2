"""Entries changed one after the other."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from replay_service.transforms.entrywise import Entrywise


class Plus(Entrywise):
    def apply(self, value: Tensor) -> Tensor:
        return value + 1

    def undo(self, value: Tensor) -> Tensor:
        return value - 1


def test_out_keys_are_written_and_in_keys_kept() -> None:
    data = TensorDict({"a": torch.zeros(2), "b": torch.zeros(2)}, [2])
    out = Plus("a", ("n", "a"))(data)
    assert out["a"].tolist() == [0, 0]
    assert out["n", "a"].tolist() == [1, 1]
    assert ("n", "a") not in data.keys(True)


def test_the_way_in_makes_in_keys_of_out_keys() -> None:
    data = TensorDict({"a": torch.ones(2)}, [2])
    assert Plus("a", in_keys_inv="a").inv(data)["a"].tolist() == [0, 0]
    assert Plus("a", in_keys_inv="b", out_keys_inv="a").inv(data)["b"].tolist() == [0, 0]
    assert Plus("a").inv(data) is data
    assert (Plus("a").has_inverse, Plus("a", in_keys_inv="a").has_inverse) == (False, True)


def test_sides_must_be_as_many() -> None:
    with pytest.raises(ValueError, match=r"out_keys \(1\) must be as many as in_keys; got 2"):
        Plus(["a", "b"], "c")
    with pytest.raises(ValueError, match="out_keys_inv"):
        Plus("a", in_keys_inv="a", out_keys_inv=["a", "b"])
    with pytest.raises(KeyError, match=r"key \(b\)"):
        Plus("b")(TensorDict({"a": torch.zeros(2)}, [2]))
