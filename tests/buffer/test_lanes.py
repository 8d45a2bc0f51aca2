"""Lanes: one number per record, whatever it was named by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from replay_service.buffer.lanes import records_at, records_of


def test_records_of_slots() -> None:
    slots = torch.tensor([2, 0])
    assert records_of(slots, 1) is slots
    assert records_of(slots, 3).tolist() == [6, 7, 8, 0, 1, 2]


@pytest.mark.parametrize(
    ("index", "records"),
    [
        (1, 1),
        (torch.tensor(-1), 3),
        ([3, 0], [3, 0]),
        (torch.tensor([[0, 1], [3, 2]]), [[0, 1], [3, 2]]),
        (np.array([[0], [3]]), [[0], [3]]),
        (torch.tensor([True, False, False, True]), [0, 3]),
        (slice(2, None), [2, 3]),
        (torch.zeros(0, dtype=torch.int64), []),
    ],
)
def test_without_lanes_the_shape_is_that_of_the_index(index: Any, records: Any) -> None:
    assert records_at(index, 4, ()).tolist() == records


@pytest.mark.parametrize(
    ("index", "records"),
    [
        (1, [2, 3]),
        ([1, 0], [[2, 3], [0, 1]]),
        (slice(1, None), [[2, 3], [4, 5]]),
        ((1, 1), 3),
        ((slice(None), 0), [0, 2, 4]),
        (torch.tensor([[2, 1], [0, 0]]), [5, 0]),
        ((torch.tensor([2, 0]), torch.tensor([1, 0])), [5, 0]),
        ((torch.tensor([-1]), torch.tensor([-2])), [4]),
        ((torch.tensor([[2], [0]]), torch.tensor([[1], [0]])), [[5], [0]]),
        (torch.zeros(0, 2, dtype=torch.int64), []),
        (torch.tensor([False, True, False]), [[2, 3]]),
    ],
)
def test_with_lanes(index: Any, records: Any) -> None:
    assert records_at(index, 3, (2,)).tolist() == records


@pytest.mark.parametrize(
    "index", [3, (0, 2), (3, 0), torch.tensor([[0, 5]]), (0, 0, 0), (torch.tensor([0, 1]), torch.tensor([0]))]
)
def test_outside(index: Any) -> None:
    with pytest.raises(IndexError, match="index"):
        records_at(index, 3, (2,))


def test_lanes_that_nobody_knows_yet() -> None:
    assert records_at(slice(None), 0, (0,)).shape == (0, 0)
    with pytest.raises(IndexError):
        records_at(0, 0, (0,))
