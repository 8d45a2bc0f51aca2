"""Layouts: their names, their texts, and tables of them."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from replay_service.arena import ALIGNMENT
from replay_service.errors import LayoutError
from replay_service.structure import Leaf, flatten_rows
from replay_service.wire.layout import Axis, Layout, LayoutTable
from replay_service.wire.message import spec_static
from tests.rows import stamped_rows
from tests.wire.layouts import layouts


def numbered(number: int) -> Layout:
    return Layout((Leaf(("x",), torch.float32, (number,)),), (Axis.ROWS,))


def test_a_digest_is_the_same_on_every_machine_and_in_every_version_of_this_protocol() -> None:
    leaves = (Leaf(("data", "next", "reward"), torch.float32, (1,)), Leaf(("index",), torch.int64, ()))
    layout = Layout(leaves, (Axis.ROWS, Axis.ITEMS), '{"spec":"t"}')
    assert layout.text == (
        b'[[[["data","next","reward"],"float32",[1],0],[["index"],"int64",[],1]],"{\\"spec\\":\\"t\\"}"]'
    )
    assert layout.digest == 7437760976516582728


@given(layouts())
def test_text_and_digest_survive_the_way(layout: Layout) -> None:
    again = Layout.from_text(layout.text)
    assert again == layout
    assert again.digest == layout.digest
    assert 0 < layout.digest < 2**63


@given(layouts(), layouts())
def test_different_layouts_have_different_names(first: Layout, second: Layout) -> None:
    assert (first.digest == second.digest) == (first == second)


@given(layouts(), st.integers(0, 9), st.integers(0, 9))
def test_blocks_are_aligned_and_do_not_touch(layout: Layout, rows: int, items: int) -> None:
    size, blocks = layout.blocks(rows, items)
    end = 0
    for (dtype, shape, offset), leaf in zip(blocks, layout.leaves, strict=True):
        assert offset >= end
        assert offset % ALIGNMENT == 0
        assert dtype is leaf.dtype
        end = offset + torch.Size(shape).numel() * dtype.itemsize
    assert end <= size == layout.payload_bytes(rows, items)
    assert size % ALIGNMENT == 0


def test_blocks_of_many_sizes_are_not_kept_for_ever() -> None:
    layout = numbered(3)
    for rows in range(1000):
        assert layout.blocks(rows, 0).leaves[0][1] == (rows, 3)


LEAF = [["a"], "float32", [2], 0]


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        [],
        [[LEAF]],
        [[LEAF], 7],
        [[LEAF], "[]"],
        [[LEAF], "{"],
        ["ab", "{}"],
        [[LEAF[:3]], "{}"],
        [[["a", "float32", [2], 0]], "{}"],
        [[[[1], "float32", [2], 0]], "{}"],
        [[[["a"], "complex32", [2], 0]], "{}"],
        [[[["a"], ["float32"], [2], 0]], "{}"],
        [[[["a"], "float32", 2, 0]], "{}"],
        [[[["a"], "float32", [-1], 0]], "{}"],
        [[[["a"], "float32", [True], 0]], "{}"],
        [[[["a"], "float32", [1.0], 0]], "{}"],
        [[[["a"], "float32", [2**49], 0]], "{}"],
        [[[["a"], "float32", [0, 2**70], 0]], "{}"],
        [[[["a"], "float32", [2**30, 2**30], 0]], "{}"],
        [[[["a"], "float32", [1] * 17, 0]], "{}"],
        [[[["a"], "float32", [2], 3]], "{}"],
        [[LEAF, LEAF], "{}"],
        [[[[str(i)], "bool", [], 0] for i in range(5000)], "{}"],
    ],
)
def test_what_is_no_layout_is_refused(value: Any) -> None:
    with pytest.raises(LayoutError, match="layout must be"):
        Layout.from_text(json.dumps(value).encode())


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"[" * 100_000, b"9" * 10_000, b'[[],"{}"]x'])
def test_bytes_that_are_no_text_are_refused(text: bytes) -> None:
    with pytest.raises(LayoutError):
        Layout.from_text(text)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(text: bytes) -> None:
    with pytest.raises(LayoutError):
        Layout.from_text(text)


def layout_of(names: list[str], static: str, axes: list[Axis] | None = None) -> Layout:
    leaves = tuple(Leaf(("data", name), torch.float32, ()) for name in names)
    return Layout(leaves, tuple(axes or [Axis.ROWS] * len(names)), static)


def test_records_come_with_their_spec() -> None:
    rows = flatten_rows(stamped_rows(3))
    leaves = tuple(Leaf(("data", *leaf.key), leaf.dtype, leaf.shape) for leaf in rows.leaves())
    layout = Layout.from_text(Layout(leaves, (Axis.ROWS,) * len(leaves), spec_static(rows.spec)).text)
    keys, places, spec = layout.records("data")
    assert list(keys) == rows.keys
    assert list(places) == list(range(len(leaves)))
    assert spec == rows.spec


TWO = '{"spec":["dict",[["a","t"],["b","t"]]]}'


@pytest.mark.parametrize(
    "layout",
    [
        layout_of(["a", "b"], "{}"),
        layout_of([], TWO),
        layout_of(["a"], TWO),
        layout_of(["a", "c"], TWO),
        layout_of(["a", "b", "c"], TWO),
        layout_of(["a", "b"], TWO, [Axis.ROWS, Axis.ITEMS]),
        layout_of(["a", "b"], TWO, [Axis.ONE, Axis.ONE]),
        layout_of(["a", "b"], '{"spec":7}'),
        layout_of(["a", "b"], '{"spec":null}'),
        layout_of(["a", "b"], '{"spec":[]}'),
        layout_of(["a", "b"], '{"spec":["dict",[7]]}'),
        layout_of(["a", "b"], '{"spec":["dict",[["a"]]]}'),
    ],
)
def test_records_that_their_spec_does_not_describe_are_refused(layout: Layout) -> None:
    with pytest.raises(LayoutError):
        layout.records("data")


def test_a_table_forgets_what_was_not_used_for_longest() -> None:
    table = LayoutTable(limit=3)
    for number in range(3):
        table.add(numbered(number))
    assert table.get(numbered(0).digest) == numbered(0)
    table.add(numbered(3))
    assert table.get(numbered(1).digest) is None
    assert all(table.get(numbered(number).digest) is not None for number in (0, 2, 3))
    assert len(table) == 3


def test_a_table_is_shared_by_threads() -> None:
    table = LayoutTable(limit=4)
    known = [numbered(number) for number in range(12)]
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(200):
                for layout in known:
                    table.add(layout)
                    found = table.get(layout.digest)
                    assert found is None or found == layout
        except BaseException as error:  # handed to the main thread
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(table) <= 4
