"""Ranks: the heap of the worst, against a plain list."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_service.buffer.writers.ranks import Ranks

SMALL = st.integers(-2, 3).map(float)


def test_the_lowest_of_equal_ones_is_the_first_slot() -> None:
    ranks = Ranks(np.array([2.0, 1.0, 1.0]))
    assert ranks.lowest() == (1.0, 1)
    ranks.put([1], [5.0])
    assert ranks.lowest() == (1.0, 2)


def test_of_nothing_there_is_no_lowest() -> None:
    ranks = Ranks(np.zeros(0))
    assert ranks.lowest() is None
    assert ranks.beaten_by([math.inf]) == []
    ranks.put([0], [3.0])
    assert ranks.lowest() == (3.0, 0)


def test_nan_is_the_lowest() -> None:
    ranks = Ranks(np.array([-5.0, math.nan]))
    assert ranks.lowest() == (-math.inf, 1)
    ranks.put([0], [math.nan])
    assert ranks.lowest() == (-math.inf, 0)


def test_old_entries_do_not_pile_up() -> None:
    ranks = Ranks(np.zeros(3))
    for turn in range(10_000):
        ranks.put([turn % 3], [float(turn)])
    assert ranks.lowest() == (9997.0, 1)
    assert len(vars(ranks)["_heap"]) < 100


@pytest.mark.parametrize("back_and_forth", [[1.0], [1.0, 0.0], [1.0, 0.0, 1.0, 0.0]])
def test_a_slot_makes_room_once(back_and_forth: list[float]) -> None:
    ranks = Ranks(np.array([0.0, 9.0]))
    for rank in back_and_forth:
        ranks.put([0], [rank])
    assert ranks.beaten_by([5.0, 5.0, 5.0]) == [0]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(SMALL, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), SMALL), max_size=40),
    st.lists(SMALL, max_size=8),
)
def test_against_a_list(first: list[float], changes: list[tuple[int, float]], rising: list[float]) -> None:
    model, ranks = list(first), Ranks(np.array(first, np.float64))
    for slot, rank in changes:
        if slot > len(model):
            continue
        model[slot : slot + 1] = [rank]
        ranks.put([slot], [rank])
        assert ranks.lowest() == min(zip(model, range(len(model)), strict=True))
    best_first = sorted(rising, reverse=True)
    left = sorted(zip(model, range(len(model)), strict=True))
    expected = []
    for rank, (old, slot) in zip(best_first, left, strict=False):
        if rank <= old:
            break
        expected.append(slot)
    assert ranks.beaten_by(best_first) == expected
    assert ranks.beaten_by(best_first) == expected, "nothing has changed"
