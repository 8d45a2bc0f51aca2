from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from replay_service.episodic.batch import Batch


def numbers() -> Batch:
    return Batch(a=[1.0, 2.0], t=torch.tensor([1.0, 2.0]), z={"k": [1.0, 2.0]}, e={}, n=None)


def test_every_leaf_is_changed_in_place() -> None:  # E11
    batch = numbers()
    leaf, tensor = batch.a, batch.t
    batch += 1
    batch *= 2
    assert [part.tolist() for part in (batch.a, batch.t, batch.z.k)] == [[4, 6]] * 3
    assert (batch.e.is_empty(), batch.n) == (True, None)
    assert leaf is batch.a
    assert tensor is batch.t
    batch /= 2
    assert batch.t.tolist() == [2, 3]


def test_without_in_place_nothing_changes() -> None:  # E11
    batch = numbers()
    halves = batch / 2
    assert halves.a.tolist() == halves.t.tolist() == halves.z.k.tolist() == [0.5, 1]
    assert (batch + batch).z.k.tolist() == [2, 4]
    assert (batch * np.float64(3)).t.tolist() == [3, 6]
    assert batch == numbers()
    batch += batch
    assert [part.tolist() for part in (batch.a, batch.t, batch.z.k)] == [[2, 4]] * 3


def test_rows_are_changed_in_place() -> None:  # E8
    documented = Batch(obs={"index": np.zeros((2, 3))}, act=torch.zeros((2, 2)))
    documented[:, 1] += 6
    assert documented.obs.index.tolist() == [[0, 6, 0], [0, 6, 0]]
    assert (documented[-1].obs.index.tolist(), documented[-1].act.tolist()) == ([0, 6, 0], [0, 6])
    batch = Batch(a=[[1, 2], [3, 4]])
    batch[0] += 10
    batch[:, 1] *= 2
    assert batch.a.tolist() == [[11, 24], [3, 8]]
    scalars = Batch(a=[1, 2])
    scalars[-1] += 5
    assert scalars.a.tolist() == [1, 7]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda b: b / 2, TypeError),
        (lambda b: b - 1, TypeError),
        (lambda b: b - b, TypeError),
        (lambda b: b.__isub__(1), AttributeError),
        (lambda b: b / b, AssertionError),
        (lambda b: b * b, AssertionError),
        (lambda b: b * b, TypeError),
        (lambda b: b + "x", TypeError),
        (lambda b: b + Batch(z=[1, 2]), ValueError),
        (lambda b: b + 0.5, TypeError),
        (lambda b: Batch(s="x", i=[1]) + 1, TypeError),
        (lambda b: Batch(s=["x"], i=[1]) + 1, TypeError),
        (lambda b: b + Batch(f=[1.0, 2.0], i=[[1, 2], [3, 4]]), TypeError),
        (lambda b: Batch(t=torch.tensor([1, 2])) / 2, TypeError),
    ],
)
def test_refused(call: Any, error: type[Exception]) -> None:  # E11
    with pytest.raises(error):
        call(Batch(f=[1.0, 2.0], i=[1, 2]))


def test_a_leaf_that_does_not_go_along_leaves_all_unchanged() -> None:
    batch = Batch(f=[1.0, 2.0], i=[1, 2])
    with pytest.raises(TypeError, match=r"i .*int64"):
        batch /= 2
    assert batch.f.tolist() == [1, 2]
