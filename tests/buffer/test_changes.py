"""The watch of a column: what a save sees is one moment, and what changed since the last one is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_service.buffer import changes
from replay_service.buffer.changes import Watch, rows_per_block
from replay_service.buffer.columns import Column
from replay_service.structure import Leaf

RECORDS = 100


@pytest.mark.parametrize(
    ("row_bytes", "records", "rows"),
    [
        (4096, 250_000, 1024),  # a gigabyte: blocks of four megabytes
        (28_224, 18_000, 128),
        (8, 1_000_000, 131_072),  # never below a megabyte
        (1, 10, 1 << 20),
        (0, 10, 1 << 20),
        (1 << 30, 10, 1),  # a row is never divided
        (1 << 20, 100_000, 64),  # never above 64 megabytes
    ],
)
def test_blocks_are_neither_tiny_nor_huge(row_bytes: int, records: int, rows: int) -> None:
    assert rows_per_block(row_bytes, records) == rows


def watched(monkeypatch: pytest.MonkeyPatch) -> Column:
    """A column of one number per row, with blocks of 16 rows and pages of 4."""
    monkeypatch.setattr(changes, "LEAST_BLOCK_BYTES", 16 * 8)
    monkeypatch.setattr(changes, "PAGE_BYTES", 4 * 8)
    column = Column(Leaf((), torch.int64, ()), torch.arange(RECORDS))
    column.watch = Watch(column.tensor, 8)
    assert column.watch.rows == 16
    return column


def seen(watch: Watch, block: int, rows: int) -> list[int]:
    return torch.cat(watch.held(block, rows)).tolist() if block * watch.rows < rows else []


writes = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.integers(0, RECORDS - 1), st.integers(0, 40)),
        st.tuples(st.just("scattered"), st.lists(st.integers(0, RECORDS - 1), max_size=6), st.none()),
        st.tuples(st.just("block is saved"), st.integers(0, 6), st.none()),
        st.tuples(st.just("next save"), st.integers(0, RECORDS), st.booleans()),
    ),
    max_size=30,
)


@settings(max_examples=150, deadline=None)
@given(history=writes)
def test_any_history(history: list[Any]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        column = watched(monkeypatch)
    watch = column.watch
    assert watch is not None
    number, rows, frozen, dirty, saved = 1000, 0, [], set(range(7)), set()
    moment: int | None = None
    for kind, first, second in history:
        if kind in ("run", "scattered"):
            places = list(range(first, min(first + second, RECORDS))) if kind == "run" else first
            values = torch.arange(number, number + len(places))
            number += len(places)
            if kind == "run":
                column.write(first, values)
            else:
                column.write_at(torch.tensor(places, dtype=torch.int64), values)
            dirty |= {place // 16 for place in places}
        elif kind == "block is saved":
            watch.release(first)
            saved.add(first)
        else:
            watch.thaw()
            rows, frozen = first, column.tensor.tolist()
            since = moment if second else None
            moment, changed = watch.freeze(rows, since)
            blocks = -(-rows // 16)
            assert changed.tolist() == [since is None or block in dirty for block in range(blocks)]
            dirty, saved = set(), set()
        for block in range(7):
            if frozen and block not in saved:
                assert seen(watch, block, rows) == frozen[block * 16 : min((block + 1) * 16, rows)]


def test_a_writer_copies_no_more_than_the_pages_that_it_writes_to(monkeypatch: pytest.MonkeyPatch) -> None:
    column = watched(monkeypatch)
    assert column.watch is not None
    column.watch.freeze(RECORDS, None)
    column.write(5, torch.zeros(2, dtype=torch.int64))
    assert [column.watch.kept(block) for block in range(3)] == [1, 0, 0]
    column.write(5, torch.ones(2, dtype=torch.int64))
    assert column.watch.kept(0) == 1, "the first copy is the one that counts"
    assert seen(column.watch, 0, RECORDS) == list(range(16))
    column.watch.release(0)
    column.write(0, torch.zeros(16, dtype=torch.int64))
    assert column.watch.kept(0) == 0
    column.watch.thaw()
    column.write(0, torch.zeros(RECORDS, dtype=torch.int64))
    assert [column.watch.kept(block) for block in range(7)] == [0] * 7


def test_moments_belong_to_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    column = watched(monkeypatch)
    watch = column.watch
    assert watch is not None
    assert watch.moment_of(None) is None
    moment = watch.pass_moment()
    watch.remember("one", moment)
    assert (watch.moment_of("one"), watch.moment_of("two"), watch.moment_of(None)) == (moment, None, None)
    column.write(20, torch.zeros(1, dtype=torch.int64))
    _, changed = watch.freeze(RECORDS, watch.moment_of("one"))
    assert changed.tolist() == [False, True, False, False, False, False, False]


def test_a_column_without_a_watch_and_a_copy_of_one_with() -> None:
    import pickle

    column = Column(Leaf((), torch.int64, ()), torch.arange(5))
    assert column.watch is None
    column.write(0, torch.zeros(2, dtype=torch.int64))
    column.watch = Watch(column.tensor, 8)
    assert pickle.loads(pickle.dumps(column)).watch is None
