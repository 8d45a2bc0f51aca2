from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_service.buffer import episode_table
from replay_service.buffer.episodes import EpisodeIndex
from tests.buffer.episode_model import Model


def values(by_ids: bool, count: int, draw: Callable[..., Any]) -> list[Any]:
    value = st.integers(0, 2) if by_ids else st.booleans()
    return list(draw(st.lists(value, min_size=count, max_size=count)))


def write(model: Model, index: EpisodeIndex, draw: Callable[..., Any]) -> None:
    rows = draw(st.integers(0, 2 * model.capacity + 1))
    column = [values(model.by_ids, len(model.lanes), draw) for _ in range(rows)]
    written = [[lane.write(value) for lane, value in zip(model.lanes, row, strict=True)] for row in column]
    index.write(
        np.array([slots[0] for slots in written], np.int64),
        **model.column(np.reshape(column, (rows, len(model.lanes)))),
    )


def append(model: Model, index: EpisodeIndex, draw: Callable[..., Any]) -> None:
    lanes = draw(st.lists(st.integers(0, len(model.lanes) - 1), min_size=1, max_size=2 * model.capacity))
    column = values(model.by_ids, len(lanes), draw)
    slots = [model.lanes[lane].write(value) for lane, value in zip(lanes, column, strict=True)]
    assert index.append(lanes, **model.column(column)).tolist() == slots


def rewrite(model: Model, index: EpisodeIndex, draw: Callable[..., Any]) -> None:
    stored = [(number, slot) for number, lane in enumerate(model.lanes) for slot in lane.values]
    if stored:
        rows = draw(st.lists(st.sampled_from(stored), max_size=4))
        column = values(model.by_ids, len(rows), draw)
        for (lane, slot), value in zip(rows, column, strict=True):
            model.lanes[lane].values[slot] = value
        lanes, slots = np.array(rows, np.int64).reshape(-1, 2).T
        index.rewrite(slots, lanes=lanes, **model.column(column))


def cut(model: Model, index: EpisodeIndex, draw: Callable[..., Any]) -> None:
    number = draw(st.integers(0, len(model.lanes) - 1))
    if model.lanes[number].values:
        model.lanes[number].cuts.add(model.lanes[number].slots()[-1])
    index.cut(number)


def clear(model: Model, index: EpisodeIndex, draw: Callable[..., Any]) -> None:
    number = draw(st.integers(0, len(model.lanes) - 1))
    model.lanes[number].values.clear()
    model.lanes[number].cuts.clear()
    model.lanes[number].cursor = 0
    index.clear(number)


def reload(model: Model, index: EpisodeIndex, draw: Callable[..., Any]) -> None:
    state = index.state_dict()
    if draw(st.booleans()):
        index.clear()
    index.load_state_dict(state)


@settings(max_examples=120, deadline=None)
@given(
    data=st.data(),
    capacity=st.integers(1, 9),
    lanes=st.integers(1, 3),
    by_ids=st.booleans(),
    grows=st.booleans(),
    apart=st.booleans(),
)
def test_any_history_leaves_what_a_walk_over_the_rows_finds(
    data: st.DataObject, capacity: int, lanes: int, by_ids: bool, grows: bool, apart: bool
) -> None:
    model = Model(capacity, lanes, by_ids)
    with mock.patch.object(episode_table, "FIRST_ROWS", 2):
        index = EpisodeIndex(capacity, lanes, dense_limit=0 if grows else 1 << 24)
    deeds = [append, rewrite, cut, clear, reload] if apart else [write, write, rewrite, cut, reload]
    for deed in data.draw(st.lists(st.sampled_from(deeds), min_size=1, max_size=7)):
        deed(model, index, data.draw)
        model.check(index)


@settings(max_examples=40, deadline=None)
@given(
    data=st.data(),
    capacity=st.integers(1, 9),
    lanes=st.integers(1, 3),
    by_ids=st.booleans(),
)
def test_columns_rebuild_what_writing_made(data: st.DataObject, capacity: int, lanes: int, by_ids: bool) -> None:
    model, index = Model(capacity, lanes, by_ids), EpisodeIndex(capacity, lanes)
    for _ in range(data.draw(st.integers(1, 3))):
        write(model, index, data.draw)
    rebuilt = EpisodeIndex(capacity, lanes)
    rebuilt.write(np.arange(capacity), **model.column(np.ones((capacity, lanes), np.int64)))
    column = np.zeros((capacity, lanes), np.int64)
    for number, lane in enumerate(model.lanes):
        column[list(lane.values), number] = list(lane.values.values())
    rebuilt.rebuild(**model.column(column), cursor=index.cursors, length=index.length)
    model.check(rebuilt)


def test_columns_without_a_row_clear_the_index() -> None:
    index = filled()
    index.rebuild(ids=np.zeros((5, 2), np.int64), cursor=0, length=0)
    index.append([], ids=[])
    index.load_state_dict(index.state_dict())
    assert (index.length, index.marked_by, index.count()) == (0, None, 0)


def test_a_big_ring_that_is_filled_in_pieces_grows_and_wraps() -> None:
    model, index = Model(5000, 1, False), EpisodeIndex(5000, dense_limit=0)
    rng = np.random.default_rng(0)
    for rows in (700, 700, 2000, 1599, 1, 300):
        ends = rng.random(rows) < 0.03
        index.write([model.lanes[0].write(bool(end)) for end in ends], ends=ends)
        assert index.count(20) == sum(len(fragment) >= 20 for _, fragment in model.fragments())
    found = index.trajectories()
    assert [(a, n) for a, n in zip(found.start, found.length, strict=True)] == [
        (f[0], len(f)) for _, f in model.fragments()
    ]


def test_ids_that_come_back_elsewhere_are_another_episode() -> None:
    index = EpisodeIndex(8)
    index.write(np.arange(6), ids=[7, 7, 1, 7, 7, 7])
    assert index.trajectories().length.tolist() == [2, 1, 3]


def test_float_ids_mean_the_same_as_integer_ids() -> None:
    index = EpisodeIndex(4)
    index.write(np.arange(4), ids=torch.tensor([0.0, -0.0, 0.5, 0.5]))
    assert index.trajectories().length.tolist() == [2, 2]


def test_an_episode_as_long_as_the_ring_stays_one_while_its_head_is_overwritten() -> None:
    index = EpisodeIndex(10)
    index.write(np.arange(10), ends=[True, *[False] * 9])
    index.write([0, 1, 2], ends=[False] * 3)
    assert [part.tolist() for part in index.trajectories()] == [[3], [2], [10], [0]]
    index.write([3], ends=[True])
    index.write([4], ends=[False])
    assert index.trajectories().length.tolist() == [9, 1]


def test_ending_the_newest_row_in_place_is_noticed() -> None:
    index = EpisodeIndex(4, lanes=2)
    index.write([0, 1], ends=np.zeros((2, 2), bool))
    index.rewrite([1], ends=[[True, False]])
    assert index.unfinished()[1].tolist() == [1]
    index.write([2], ends=[[False, False]])
    assert index.trajectories().length.tolist() == [2, 1, 3]


def test_a_cut_separates_rows_but_does_not_finish_them() -> None:
    index = EpisodeIndex(6)
    index.write([0, 1], ends=[False, False])
    index.cut()
    assert index.unfinished()[0].tolist() == [1]
    index.write([2], ends=[False])
    assert index.next([0, 1, 2]).tolist() == [1, 1, 2]
    index.rewrite([1], ends=[False])
    assert index.trajectories().length.tolist() == [2, 1]


def test_cleared_index_takes_the_other_kind_of_marks() -> None:
    index = EpisodeIndex(3)
    index.write([0, 1], ends=[True, False])
    index.clear()
    assert (index.length, index.cursor, index.marked_by) == (0, 0, None)
    index.write([0, 1], ids=[4, 4])
    assert (index.trajectories().length.tolist(), index.marked_by) == ([2], "ids")


def filled() -> EpisodeIndex:
    index = EpisodeIndex(5, lanes=2)
    index.write(np.arange(3), ends=[[0, 1], [1, 0], [0, 0]])
    return index


REFUSED: list[tuple[type[Exception], str, Callable[[EpisodeIndex], Any]]] = [
    (TypeError, "exactly one of ends and ids", lambda i: i.write([3])),
    (TypeError, "got both", lambda i: i.write([3], ends=[[0, 0]], ids=[[0, 0]])),
    (TypeError, "slots", lambda i: i.write([3.0], ends=[[0, 0]])),
    (TypeError, "ids .* integers or floats", lambda i: i.append([0], ids=["a"])),
    (ValueError, "ids must not follow ends", lambda i: i.write([3], ids=[[0, 0]])),
    (ValueError, "ids must not follow ends", lambda i: i.append([0], ids=[0])),
    (ValueError, "consecutive .* cursor 3", lambda i: i.write([2], ends=[[1, 1]])),
    (ValueError, "consecutive", lambda i: i.write([3, 0], ends=[[1, 1], [1, 1]])),
    (ValueError, "consecutive", lambda i: i.write([5, 6, 7, 8, 9], ends=np.ones((5, 2)))),
    (ValueError, r"shape \[2, 2\]", lambda i: i.write([3, 4], ends=[True, True])),
    (ValueError, r"slots must be \[n\]", lambda i: i.write([[3]], ends=[[1, 1]])),
    (IndexError, "lane \\(2\\)", lambda i: i.append([0, 2], ends=[1, 1])),
    (IndexError, "lane \\(-1\\)", lambda i: i.cut([-1])),
    (IndexError, "lane \\(9\\)", lambda i: i.clear(9)),
    (IndexError, "slot \\(3\\) .* stored row", lambda i: i.rewrite([0, 3], ends=np.ones((2, 2)))),
    (IndexError, "slot \\(-1\\)", lambda i: i.rewrite([0, -1], ends=[1, 1], lanes=[0, 0])),
    (IndexError, "lane \\(2\\)", lambda i: i.rewrite([0, 0], ends=[1, 1], lanes=[0, 2])),
    (ValueError, "shape", lambda i: i.rewrite([0, 1], ends=[1, 1])),
    (ValueError, "length \\(\\[6, 6\\]\\)", lambda i: i.rebuild(ends=np.ones((6, 2)), cursor=0, length=6)),
    (ValueError, "cursor \\(\\[1, 1\\]\\)", lambda i: i.rebuild(ends=np.ones((5, 2)), cursor=1, length=2)),
    (ValueError, "cursor \\(\\[5, 5\\]\\)", lambda i: i.rebuild(ends=np.ones((5, 2)), cursor=5, length=5)),
    (ValueError, "at least the 2 stored", lambda i: i.rebuild(ends=np.ones((1, 2)), cursor=2, length=2)),
    (ValueError, "one for each of the 2 lanes", lambda i: i.rebuild(ends=np.ones((5, 2)), cursor=[1, 1, 1], length=1)),
    (ValueError, "'marks'.* missing", lambda i: i.load_state_dict({"capacity": 5})),
    (ValueError, "2 lanes of 5 rows", lambda i: i.load_state_dict(EpisodeIndex(4, 2).state_dict())),
    (ValueError, "2 lanes of 5 rows", lambda i: i.load_state_dict(EpisodeIndex(5, 1).state_dict())),
    (ValueError, "marks", lambda i: i.load_state_dict({**i.state_dict(), "marks": torch.zeros(2, 4)})),
    (ValueError, "ids exactly if", lambda i: i.load_state_dict({**i.state_dict(), "marked_by": "ids"})),
]


@pytest.mark.parametrize(("error", "message", "call"), REFUSED)
def test_what_is_refused_changes_nothing(
    error: type[Exception], message: str, call: Callable[[EpisodeIndex], Any]
) -> None:
    index = filled()
    before = index.trajectories()
    with pytest.raises(error, match=message):
        call(index)
    assert all((a == b).all() for a, b in zip(before, index.trajectories(), strict=True))
    assert (index.cursor, index.length, index.marked_by) == (3, 3, "ends")


def test_lanes_written_apart_have_no_common_cursor() -> None:
    index = EpisodeIndex(5, lanes=2)
    index.append([1], ends=[False])
    with pytest.raises(ValueError, match="cursors where lanes are written apart"):
        index.write([0], ends=[[0, 0]])


@pytest.mark.parametrize(("capacity", "lanes"), [(0, 1), (3, 0), (-1, 1)])
def test_an_index_needs_rows_and_lanes(capacity: int, lanes: int) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        EpisodeIndex(capacity, lanes)


def test_more_rows_than_four_bytes_number_are_refused_when_they_come() -> None:
    index = EpisodeIndex(1 << 40)
    index.write([0, 1], ends=[False, True])
    with mock.patch.object(episode_table, "MAX_ROWS", 2000), pytest.raises(ValueError, match="at most 2000"):
        index.write(np.arange(2, 3000), ends=np.zeros(2998, bool))
    assert (index.length, index.trajectories().length.tolist()) == (2, [2])


def test_state_is_a_copy_both_ways() -> None:
    index = filled()
    state = index.state_dict()
    index.write([3], ends=[[1, 1]])
    assert state["lengths"].tolist() == [3, 3]
    other = EpisodeIndex(5, lanes=2)
    other.load_state_dict(state)
    for tensor in (state["marks"], state["cursors"], state["lengths"]):
        tensor.fill_(2)
    assert other.trajectories().length.tolist() == [2, 1, 1, 2]
    assert other.lengths.tolist() == [3, 3]
