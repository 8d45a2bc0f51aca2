"""Sums of ranges and searches by prefix (row E71 of the semantics)."""

from __future__ import annotations

import numpy as np
import pytest

from replay_service.episodic import SegmentTree
from replay_service.errors import PriorityError


@pytest.fixture
def tree() -> SegmentTree:
    tree = SegmentTree(5)
    tree[np.arange(5)] = [1.0, 2.0, 3.0, 4.0, 5.0]
    return tree


def test_sums(tree: SegmentTree) -> None:  # E71
    assert [tree.reduce(), tree.reduce(1, 3), tree.reduce(0, -1), tree.reduce(2)] == [15.0, 5.0, 10.0, 12.0]
    assert len(tree) == 5


def test_searches(tree: SegmentTree) -> None:  # E71
    values = np.array([[0.0, 1.0, 1.0001, 3.0], [5.999, 6.0, 14.999, 10.0]])
    assert tree.get_prefix_sum_idx(values).tolist() == [[0, 0, 1, 1], [2, 2, 4, 3]]
    assert tree.get_prefix_sum_idx(3.0) == 1


@pytest.mark.parametrize("value", [15.0, -0.1, np.nan])
def test_what_no_prefix_reaches_is_refused(tree: SegmentTree, value: float) -> None:  # E71
    with pytest.raises(AssertionError, match=r"must be in \[0, 15\)"):
        tree.get_prefix_sum_idx(value)
    with pytest.raises(ValueError, match="place 1 of 2"):
        tree.get_prefix_sum_idx([0.0, value])


def test_leaves(tree: SegmentTree) -> None:
    tree[2] = 0.5
    tree[[0, 4]] = 1.0
    assert [tree[0], tree[2], tree[np.array([2, 3])].tolist(), tree.reduce()] == [1.0, 0.5, [0.5, 4.0], 8.5]


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_wrong_leaves_change_nothing(tree: SegmentTree, value: float) -> None:
    with pytest.raises(ValueError, match="must be finite and not negative"):
        tree[[0, 1]] = [2.0, value]
    with pytest.raises(IndexError):
        tree[5] = 1.0
    assert tree.reduce() == 15.0


def test_without_mass_there_is_nothing_to_find() -> None:
    with pytest.raises(PriorityError):
        SegmentTree(3).get_prefix_sum_idx(0.0)
    with pytest.raises(IndexError):
        SegmentTree(3).reduce(2, 9)
