"""Indices: whatever Python users index with, as checked slots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_service.buffer.index import as_slots, is_coordinates, is_key, is_single, last_of_duplicates


@settings(deadline=None)
@given(
    st.integers(0, 12),
    st.integers(-15, 15) | st.none(),
    st.integers(-15, 15) | st.none(),
    st.integers(-4, 4) | st.none(),
)
def test_slices_are_those_of_lists(size: int, start: int | None, stop: int | None, step: int | None) -> None:
    part = slice(start, stop, step or None)
    assert as_slots(part, size).tolist() == list(range(size))[part]


@settings(deadline=None)
@given(
    st.integers(1, 9).flatmap(lambda size: st.tuples(st.just(size), st.lists(st.integers(-size, size - 1), max_size=6)))
)
def test_numbers_are_those_of_lists(drawn: tuple[int, list[int]]) -> None:
    size, numbers = drawn
    expected = [list(range(size))[number] for number in numbers]
    forms: list[Any] = [
        numbers,
        tuple(numbers),
        np.array(numbers, dtype=np.int32),
        torch.tensor(numbers, dtype=torch.int64),
    ]
    for form in forms:
        slots = as_slots(form, size)
        assert slots.dtype == torch.int64
        assert slots.tolist() == expected


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=9))
def test_masks_select(flags: list[bool]) -> None:
    expected = [place for place, flag in enumerate(flags) if flag]
    assert as_slots(torch.tensor(flags, dtype=torch.bool), len(flags)).tolist() == expected
    assert as_slots(np.array(flags, dtype=bool), len(flags)).tolist() == expected


@pytest.mark.parametrize("index", [4, -5, [0, 4], torch.tensor([0, -5]), np.array([9])])
def test_outside_is_refused_by_number(index: Any) -> None:
    with pytest.raises(IndexError, match=r"index \((4|-5|9)\) must be in \[-4, 4\); the buffer holds 4 rows"):
        as_slots(index, 4)


def test_masks_must_have_one_flag_per_row() -> None:
    with pytest.raises(IndexError, match="one flag per row; got 4 rows"):
        as_slots(torch.ones(3, dtype=torch.bool), 4)


@pytest.mark.parametrize("index", ["a", 1.5, None, True, {1}, torch.tensor([1.0]), [0.5], torch.tensor([1j])])
def test_what_is_no_index(index: Any) -> None:
    with pytest.raises(TypeError, match="index"):
        as_slots(index, 4)


def test_the_callers_index_is_left_alone() -> None:
    index = torch.tensor([-1, 0])
    as_slots(index, 4)
    assert index.tolist() == [-1, 0]


@pytest.mark.parametrize(
    ("index", "single"),
    [
        (1, True),
        (np.int32(1), True),
        (torch.tensor(1), True),
        ([1], False),
        (slice(None), False),
        (torch.tensor([1]), False),
    ],
)
def test_is_single(index: Any, single: bool) -> None:
    assert is_single(index) is single


def test_coordinates_need_lanes() -> None:
    pairs, flags = torch.tensor([[0, 1]]), torch.ones(3, 2, dtype=torch.bool)
    assert [is_coordinates(index, 2) for index in (pairs, (0, 1), flags, torch.tensor([0, 1]), 3)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert not is_coordinates(pairs, 1)


def test_keys_are_names() -> None:
    assert [is_key(index) for index in ("a", ("a", "b"), (), (0, "a"), 0)] == [True, True, False, False, False]


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), max_size=12))
def test_the_last_of_duplicates_wins(slots: list[int]) -> None:
    winners = last_of_duplicates(torch.tensor(slots, dtype=torch.int64))
    expected = sorted({slot: place for place, slot in enumerate(slots)}.values())
    if len(set(slots)) == len(slots):
        assert winners is None
    else:
        assert winners is not None
        assert winners.tolist() == expected
