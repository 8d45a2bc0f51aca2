"""Rows of a batch. Names E… are rows of the semantics that are kept to."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from replay_service.episodic.batch import Batch


def test_length_and_shape() -> None:  # E7
    assert len(Batch(a=[1, 2, 3], b=[1, 2])) == 2
    assert len(Batch()) == 0
    assert len(Batch(a=[1, 2], n=None, e={})) == 2
    assert len(Batch(a=[1, 2, 3], t=torch.zeros(3), z={"b": [1]})) == 1
    assert len(Batch(n=None)) == len(Batch(e={})) == 0
    with pytest.raises(TypeError, match=r"a .*must have rows"):
        len(Batch(a=1))
    with pytest.raises(TypeError, match=r"x\.a .*must have rows"):
        len(Batch(x={"a": 1}))
    with pytest.raises(TypeError, match="must have rows"):
        len(Batch(a=[1], c="abc"))
    assert Batch(a=np.zeros((3, 4)), b=np.zeros((3, 2, 5))).shape == [3, 2]
    assert Batch(a=np.zeros((3, 4)), e={}).shape == [3, 4]
    assert Batch(a=torch.zeros(3, 4), z={"b": np.zeros((2, 7, 1))}).shape == [2, 4]
    assert Batch(a=1, b=[1, 2]).shape == Batch().shape == []


def test_indexing() -> None:  # E9
    batch = Batch(a=[4, 5], t=torch.tensor([4, 5]), n=None, e={}, z={"k": [4, 5]})
    row = batch[0]
    assert (int(row.a), int(row.t), row.n, row.e.is_empty(), int(row.z.k)) == (4, 4, None, True, 4)
    assert isinstance(row.e, Batch)
    assert row.a.shape == row.t.shape == row.z.k.shape == ()
    for index in (
        [True, False],
        np.array([True, False]),
        np.array([0]),
        torch.tensor([0]),
        slice(1),
        [0],
        slice(-2, -1),
    ):
        part = batch[index]
        assert part.a.tolist() == part.t.tolist() == part.z.k.tolist() == [4]
        assert (part.n, part.e.is_empty()) == (None, True)
    assert batch[::-1].a.tolist() == batch[::-1].t.tolist() == [5, 4]
    assert batch[None].a.shape == batch[None].t.shape == (1, 2)
    assert batch[np.int64(1)].t == 5
    assert [int(part.a) for part in batch] == [4, 5]


@pytest.mark.parametrize(
    ("batch", "index"), [(Batch(), 0), (Batch(a=[1, 2]), 5), (Batch(a=1), 0), (Batch(a=[1], s="x"), 0)]
)
def test_wrong_indices(batch: Batch, index: int) -> None:  # E9
    with pytest.raises(IndexError):
        _ = batch[index]


def test_setting_rows_resets_what_is_not_given() -> None:  # E10
    def fresh() -> Batch:
        return Batch(a=[1, 2], b=[3.0, 4.0], o=["x", "y"], c={"d": [1, 2]}, t=torch.tensor([1, 2]), n=None)

    batch = fresh()
    batch[0] = {"a": 9}
    assert (batch.a.tolist(), batch.b.tolist(), batch.o.tolist()) == ([9, 2], [0, 4], [None, "y"])
    assert (batch.c.d.tolist(), batch.t.tolist(), batch.n) == ([0, 2], [0, 2], None)
    batch = fresh()
    batch[:, None] = {"a": [[5], [6]]}
    assert (batch.a.tolist(), batch.c.d.tolist()) == ([5, 6], [0, 0])
    batch = fresh()
    batch[np.array([1, 0])] = Batch(a=[8, 9], b=[1, 2], o=["p", "q"], c={"d": [5, 6]}, t=torch.tensor([7, 8]))
    assert (batch.a.tolist(), batch.o.tolist(), batch.c.d.tolist(), batch.t.tolist()) == (
        [9, 8],
        ["q", "p"],
        [6, 5],
        [8, 7],
    )


@pytest.mark.parametrize(
    "value",
    [
        {"z": 1},
        3,
        None,
        [9, 9],
        np.zeros(1),
        {"a": [1, 2, 3]},
        {"a": "word"},
        {"c": 3},
        {"c": {"z": 1}},
        {"a": 5, "n": 3},
    ],
)
def test_setting_rows_that_do_not_fit_changes_nothing(value: object) -> None:  # E10
    batch = Batch(b=[3.0, 4.0], a=[1, 2], c={"d": [1, 2]}, n=None)
    with pytest.raises(ValueError, match="must"):
        batch[0] = value
    assert (batch.a.tolist(), batch.b.tolist(), batch.c.d.tolist()) == ([1, 2], [3, 4], [1, 2])


def test_emptying() -> None:  # E15
    batch = Batch(a=[1, 2], b=["x", "y"], c=[1.0, 2.0])
    assert batch.empty(1).a.tolist() == Batch.empty(batch, 1).a.tolist() == [1, 0]
    assert batch.empty_(0) is batch
    assert (batch.a.tolist(), batch.b.tolist(), batch.c.tolist()) == ([0, 2], [None, "y"], [0.0, 2.0])
    assert batch.empty_().a.tolist() == [0, 0]
    nested = Batch(z={"t": torch.ones(2), "k": [1, 2]}, n=None, e={}).empty_([1])
    assert (nested.z.t.tolist(), nested.z.k.tolist(), nested.n, nested.e.is_empty()) == ([1, 0], [1, 0], None, True)


@pytest.mark.parametrize(
    ("rows", "size", "merge_last", "pieces"),
    [
        (7, 3, False, [[0, 1, 2], [3, 4, 5], [6]]),
        (7, 3, True, [[0, 1, 2], [3, 4, 5, 6]]),
        (6, 3, True, [[0, 1, 2], [3, 4, 5]]),
        (3, 10, False, [[0, 1, 2]]),
        (3, 10, True, [[0, 1, 2]]),
        (3, -1, True, [[0, 1, 2]]),
        (7, -1, False, [[0, 1, 2, 3, 4, 5, 6]]),
        (0, 3, False, []),
    ],
)
def test_splitting(rows: int, size: int, merge_last: bool, pieces: list[list[int]]) -> None:  # E14
    batch = Batch(a=np.arange(rows))
    assert [part.a.tolist() for part in batch.split(size, shuffle=False, merge_last=merge_last)] == pieces
    shuffled = list(batch.split(size, merge_last=merge_last))
    assert [len(part) for part in shuffled] == [len(piece) for piece in pieces]
    assert sorted(row for part in shuffled for row in part.a.tolist()) == list(range(rows))


def test_splitting_is_repeated_by_a_generator_and_checked_at_once() -> None:  # E14
    batch = Batch(a=np.arange(100))
    orders = [
        [part.a.tolist() for part in batch.split(30, generator=torch.Generator().manual_seed(seed))]
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1] != orders[2]
    as_usual = [row for part in batch.split(30) for row in part.a.tolist()]
    assert as_usual != list(range(100))
    assert sorted(as_usual) == list(range(100))
    with pytest.raises(ValueError, match=r"size \(0\)"):
        batch.split(0)
