from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from replay_service.buffer.episodes import find_start_stop_traj
from replay_service.errors import EmptyBufferError


def flags(*ends: int, rows: int = 10) -> Tensor:
    return torch.tensor([row in ends for row in range(rows)])


def walk(ended: list[bool], rows: int) -> list[tuple[int, int, int]]:
    """(start, stop, length) by stop; `ended` tells after which rows a boundary lies, one at least."""
    found = []
    for stop in range(rows):
        if ended[stop]:
            length = next(n for n in range(1, rows + 1) if ended[(stop - n) % rows])
            found.append(((stop - length + 1) % rows, stop, length))
    return found


@settings(max_examples=150, deadline=None)
@given(
    data=st.data(),
    rows=st.integers(1, 8),
    lanes=st.sampled_from([(), (1,), (2,), (2, 3)]),
    by_ids=st.booleans(),
    full=st.booleans(),
    has_cursor=st.booleans(),
)
def test_bounds_are_those_of_a_walk(
    data: st.DataObject, rows: int, lanes: tuple[int, ...], by_ids: bool, full: bool, has_cursor: bool
) -> None:
    size = rows * torch.Size(lanes).numel()
    numbers = data.draw(st.lists(st.integers(0, 1), min_size=size, max_size=size))
    column = torch.tensor(numbers).reshape(rows, *lanes)
    cursor = data.draw(st.integers(0, rows - 1)) if has_cursor else None
    expected = []
    # The first lane dim changes fastest.
    for reverse in itertools.product(*(range(n) for n in lanes[::-1])):
        lane = reverse[::-1]
        values = column[(slice(None), *lane)].tolist()
        ended = [values[t] != values[(t + 1) % rows] if by_ids else bool(values[t]) for t in range(rows)]
        if not full:
            ended[-1] = True
        elif cursor is not None:
            ended[cursor] = True
        ended[-1] |= not any(ended)
        expected += [([a, *lane], [b, *lane], n) for a, b, n in walk(ended, rows)]
    keyword = {"trajectory": column} if by_ids else {"end": column.bool()}
    start, stop, lengths = find_start_stop_traj(**keyword, at_capacity=full, cursor=cursor)
    assert list(zip(start.tolist(), stop.tolist(), lengths.tolist(), strict=True)) == expected
    assert start.dtype == stop.dtype == lengths.dtype == torch.int64


def test_the_newest_row_of_a_full_ring_ends_its_trajectory() -> None:
    start, stop, lengths = find_start_stop_traj(end=flags(2, 7), at_capacity=True, cursor=4)
    assert start.tolist() == [[8], [3], [5]]
    assert stop.tolist() == [[2], [4], [7]]
    assert lengths.tolist() == [5, 2, 3]


@pytest.mark.parametrize("cursor", [4, -6, torch.tensor(4), torch.tensor([3, 4]), range(3, 5)])
def test_of_several_written_slots_the_last_is_the_newest(cursor: Any) -> None:
    start, _, lengths = find_start_stop_traj(end=flags(2), at_capacity=True, cursor=cursor)
    assert start.tolist() == [[5], [3]]
    assert lengths.tolist() == [8, 2]


def test_ids_go_on_over_the_edge_of_a_full_ring_only() -> None:
    ids = torch.tensor([1, 1, 2, 2, 1])
    assert find_start_stop_traj(trajectory=ids, at_capacity=True)[2].tolist() == [3, 2]
    assert find_start_stop_traj(trajectory=ids, at_capacity=False)[2].tolist() == [2, 2, 1]
    assert find_start_stop_traj(trajectory=ids, at_capacity=True, cursor=4)[2].tolist() == [2, 2, 1]


def test_the_columns_are_left_as_they_were() -> None:
    end = flags(2)
    find_start_stop_traj(end=end, at_capacity=False, device="cpu")
    assert end.nonzero().flatten().tolist() == [2]


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (TypeError, "got both", {"end": flags(1), "trajectory": flags(1)}),
        (TypeError, "got neither", {}),
        (ValueError, "scalar", {"end": torch.tensor(True)}),
        (EmptyBufferError, "at least one row", {"end": torch.zeros(0, dtype=torch.bool)}),
        (IndexError, r"cursor \(10\)", {"end": flags(1), "cursor": 10}),
        (ValueError, "got no slots", {"end": flags(1), "cursor": range(0)}),
    ],
)
def test_what_has_no_bounds_is_refused(error: type[Exception], message: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(error, match=message):
        find_start_stop_traj(**arguments, at_capacity=True)
