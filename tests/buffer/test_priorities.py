"""Priorities as users pass them: checked as a whole, one per record."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from replay_service.buffer.priorities import checked_priorities
from replay_service.errors import PriorityError


@pytest.mark.parametrize("given", [[1, 2, 3], np.array([1.0, 2, 3]), torch.tensor([[1.0], [2], [3]]), (1.0, 2.0, 3.0)])
def test_one_per_record(given: Any) -> None:
    values = checked_priorities(given, 3)
    assert (values.dtype, values.tolist()) == (torch.float64, [1, 2, 3])


def test_one_for_all() -> None:
    assert checked_priorities(1e-300, 2).tolist() == [1e-300, 1e-300]
    assert checked_priorities(torch.tensor(2.0, requires_grad=True), 3).tolist() == [2, 2, 2]
    assert checked_priorities(2.0, 0).tolist() == []
    assert checked_priorities(torch.zeros(0, 4), 0).tolist() == []


@pytest.mark.parametrize(
    ("reduction", "expected"), [("max", [3, 6]), ("min", [1, 4]), ("mean", [2, 5]), ("median", [2, 5])]
)
def test_several_per_record(reduction: str, expected: list[float]) -> None:
    given = torch.tensor([[1.0, 2, 3], [6, 5, 4]])
    assert checked_priorities(given, 2, reduction).tolist() == expected
    assert checked_priorities(given.unsqueeze(1), 2, reduction).tolist() == expected
    assert checked_priorities(given[:1], 1, reduction).tolist() == expected[:1]


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, -1.0])
def test_wrong_numbers(wrong: float) -> None:
    for given, count in ((wrong, 3), ([0.0, wrong], 2), ([[1.0, 5.0], [wrong, 2.0]], 2)):
        with pytest.raises(PriorityError, match="finite and not negative"):
            checked_priorities(given, count)


def test_wrong_lengths() -> None:
    for given, count in (([1.0, 2.0], 3), (torch.ones(2, 3), 3), ([1.0, 2.0], 1), ([1.0, 2.0], 0)):
        with pytest.raises(ValueError, match="one entry per index"):
            checked_priorities(given, count)
