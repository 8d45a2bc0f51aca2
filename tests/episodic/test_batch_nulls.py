from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from replay_service.episodic.batch import Batch


def test_where_values_are_missing() -> None:  # E17
    assert Batch(a=[1, np.nan]).isnull().a.tolist() == [False, True]
    batch = Batch(a=[1.0, np.nan], i=[1, 2], o=["x", None], z={"t": torch.tensor([np.nan, 1.0])})
    nulls = batch.isnull()
    assert [nulls.a.tolist(), nulls.i.tolist(), nulls.o.tolist(), nulls.z.t.tolist()] == [
        [False, True],
        [False, False],
        [False, True],
        [True, False],
    ]
    assert batch.hasnull()
    assert not Batch(a=[1.0], s="x", e={}).hasnull()
    assert Batch(a=1, n=None).hasnull()
    assert Batch(o=np.array([float("nan"), 1, "x"], dtype=object)).isnull().o.tolist() == [True, False, False]


def test_rows_with_missing_values_are_dropped() -> None:  # E17
    kept = Batch(a=[None, 2, 3, 4], b=[4, 5, None, 7]).dropnull()
    assert (kept.a.tolist(), kept.b.tolist()) == ([2, 4], [5, 7])
    images = Batch(a=np.array([[1.0, np.nan], [1.0, 2.0]]), n=None).dropnull()
    assert (images.a.tolist(), images.n) == ([[1, 2]], None)
    assert Batch().dropnull().is_empty()


def test_a_column_is_set_at_some_rows() -> None:  # E18
    batch = Batch(a=[1, 2, 3])
    batch.set_array_at_key(np.array([9.0, 8.0]), "q", index=[0, 2], default_value=-1.0)
    assert batch.q.tolist() == [9, -1, 8]
    batch.set_array_at_key([7.0], "q", index=[1])
    assert batch.q.tolist() == [9, 7, 8]
    batch.set_array_at_key([1.0], "gap", index=[1])
    assert np.isnan(batch.gap).tolist() == [True, False, True]
    batch.set_array_at_key(["x"], "word", index=[1])
    assert batch.word.tolist() == [None, "x", None]
    batch.set_array_at_key(torch.arange(3), "whole")
    assert batch.whole.tolist() == [0, 1, 2]


def test_a_column_that_does_not_fit() -> None:  # E18
    batch = Batch(a=[1, 2, 3])
    with pytest.raises(TypeError, match="default_value"):
        batch.set_array_at_key(np.array([1]), "q", index=[0])
    with pytest.raises(ValueError, match=r"seq \(2 rows\) must have 3 rows"):
        batch.set_array_at_key([1.0, 2.0], "q")
    with pytest.raises(ValueError, match="must be an array"):
        batch.set_array_at_key(1.0, "q")
    assert list(batch.keys()) == ["a"]


def test_a_column_of_tensors_is_set_at_some_rows() -> None:
    batch = Batch(t=torch.zeros(3), a=[1.0, 2.0, 3.0])
    held = batch.t
    batch.set_array_at_key(torch.tensor([9.0]), "t", index=torch.tensor([2]))
    batch.set_array_at_key(np.array([8.0, 7.0]), "t", index=np.array([True, True, False]))
    assert batch.t is held
    assert held.tolist() == [8, 7, 9]
    batch.set_array_at_key(torch.tensor([5.0]), "a", index=torch.tensor([1]))
    assert batch.a.tolist() == [1, 5, 3]
    batch.set_array_at_key(torch.tensor([[4.0, 4.0]]), "new", index=[1])
    assert isinstance(batch.new, torch.Tensor)
    assert batch.new.isnan().tolist() == [[True, True], [False, False], [True, True]]
    batch.set_array_at_key(torch.tensor([4]), "whole", index=[1], default_value=-1)
    assert batch.whole.tolist() == [-1, 4, -1]


@pytest.mark.parametrize(
    ("seq", "default"),
    [
        (np.array([1]), np.nan),
        (np.array([1]), 0.5),
        (np.array([1], np.uint8), -1),
        (np.array([1.0]), "x"),
        (torch.tensor([1]), float("nan")),
        (torch.tensor([1], dtype=torch.uint8), -1),
    ],
)
def test_a_default_that_the_column_cannot_hold(seq: Any, default: Any) -> None:
    batch = Batch(a=[1, 2, 3])
    with pytest.raises(ValueError, match=r"default_value .* can hold"):
        batch.set_array_at_key(seq, "q", index=[0], default_value=default)
    assert list(batch.keys()) == ["a"]


@pytest.mark.parametrize("key", ["a", "new"])
def test_rows_that_do_not_fit_change_nothing(key: str) -> None:
    batch = Batch(a=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=f"{key} must be written with"):
        batch.set_array_at_key(np.array([7.0, 8.0, 9.0]), key, index=[0, 1])
    with pytest.raises(IndexError):
        batch.set_array_at_key(np.array([7.0]), key, index=[3])
    assert batch == Batch(a=[1.0, 2.0, 3.0])
