from __future__ import annotations

import numpy as np
import pytest
import torch

from replay_service.episodic.batch import Batch


def test_stacking_fills_names_that_are_lacking() -> None:  # E12
    stacked = Batch.stack([Batch(a=[1, 2], b=[5, 6]), Batch(a=[3, 4])])
    assert stacked.a.tolist() == [[1, 2], [3, 4]]
    assert stacked.b.tolist() == [[5, 6], [0, 0]]
    assert Batch.stack([{"o": "x"}, {}]).o.tolist() == ["x", None]
    nested = Batch.stack([{"e": {}, "t": torch.ones(2)}, {"e": {"q": 3}}])
    assert nested.e.q.tolist() == [0, 3]
    assert nested.t.tolist() == [[1, 1], [0, 0]]


def test_stacking_along_another_axis() -> None:  # E12
    first, second = Batch(a=[1, 2]), Batch(a=[3, 4])
    assert Batch.stack([first, second], axis=1).a.tolist() == [[1, 3], [2, 4]]
    with pytest.raises(ValueError, match=r"b must be in every batch where axis \(1\)"):
        Batch.stack([Batch(a=[1, 2], b=[5, 6]), second], axis=1)
    with pytest.raises(ValueError, match=r"x\.a must have arrays of one shape"):
        Batch.stack([Batch(x={"a": [1, 2]}), Batch(x={"a": [1]})], axis=1)


def test_stacking_what_is_not_alike() -> None:
    assert [row.tolist() for row in Batch.stack([{"a": [1]}, {"a": [1, 2]}]).a] == [[1], [1, 2]]
    assert Batch.stack([{"a": None}, {"a": 1}]).a.tolist() == [None, 1]
    assert Batch.stack([Batch(a=[1, 2]), Batch(a=torch.tensor([3, 4]))]).a.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(TypeError, match=r"a must have tensors of one shape; got \[\[2\], \[3\]\]"):
        Batch.stack([Batch(a=torch.zeros(2)), Batch(a=torch.zeros(3))])
    assert Batch.stack([]).is_empty()
    assert Batch.stack([{}, {}]).is_empty()


def test_concatenating() -> None:  # E13
    joined = Batch.cat([Batch(a=[1, 2], c={"d": [1, 2]}), Batch(a=[3], c={"d": [3]}), {}])
    assert (joined.a.tolist(), joined.c.d.tolist()) == ([1, 2, 3], [1, 2, 3])
    tensors = Batch.cat([Batch(a=torch.zeros(1), n=None, e={}), Batch(a=torch.ones(1), n=None, e={})])
    assert (tensors.a.tolist(), tensors.n, tensors.e.is_empty()) == ([0, 1], None, True)
    assert Batch.cat([Batch(a=torch.zeros(1)), Batch(a=np.ones(1))]).a.tolist() == [0, 1]
    assert Batch.cat([]).is_empty()


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (Batch(a=[1]), Batch(b=[1]), "a, b must be in every batch"),
        (Batch(x={"a": [1]}), Batch(x={}), r"x\.a must be in every batch"),
        (Batch(a=[1], c={"d": [1]}), Batch(a=[1], c={"e": [1]}), r"c\.d, c\.e must be in every batch"),
        (Batch(a=1), Batch(a=2), "a must have rows"),
        (Batch(a=[1], s="x"), Batch(a=[1], s="x"), "s must have rows"),
        (Batch(a=[[1, 2]]), Batch(a=[[1]]), r"a must have rows of one shape.*\[1, 2\].*\[1, 1\]"),
    ],
)
def test_concatenating_what_does_not_fit(first: Batch, second: Batch, message: str) -> None:  # E13
    with pytest.raises(ValueError, match=message):
        Batch.cat([first, second])


def test_in_place() -> None:
    grown = Batch()
    grown.cat_(Batch(a=[1]))
    grown.cat_([Batch(a=[2]), Batch(a=[3])])
    assert grown.a.tolist() == [1, 2, 3]
    grown.stack_([Batch(a=[4, 5, 6])])
    assert grown.a.tolist() == [[1, 2, 3], [4, 5, 6]]
    fresh = Batch()
    fresh.stack_([Batch(a=1), Batch(a=2)])
    assert fresh.a.tolist() == [1, 2]
    with pytest.raises(ValueError, match="b"):
        grown.cat_(Batch(b=[1]))
    assert grown.a.shape == (2, 3)
