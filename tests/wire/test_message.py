"""Messages: how named tensors become leaves and axes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from replay_service.errors import LayoutError
from replay_service.structure import Leaf, flatten_rows
from replay_service.wire.layout import Axis
from replay_service.wire.message import EMPTY, TEXT, Message, compose, layout_for, spec_static, text_of
from replay_service.wire.verbs import Verb
from tests.rows import stamped_rows


def test_leading_sizes_become_rows_items_or_nothing() -> None:
    message = compose(
        Verb.UPDATE_IF_PRESENT,
        [
            (("index",), torch.zeros(5, dtype=torch.int64)),
            (("lengths",), torch.zeros(2, 3)),
            (("other",), torch.zeros(2)),
            (("third",), torch.zeros(7)),
            (("number",), torch.tensor(1.0)),
        ],
    )
    assert message.layout.axes == (Axis.ROWS, Axis.ITEMS, Axis.ITEMS, Axis.ONE, Axis.ONE)
    assert (message.rows, message.items) == (5, 2)
    assert [leaf.shape for leaf in message.layout.leaves] == [(), (3,), (), (7,), ()]


@given(st.integers(0, 200), st.integers(0, 200))
def test_a_layout_does_not_know_how_many_rows_there_are(first: int, second: int) -> None:
    layouts = []
    for count in (first, second):
        rows = flatten_rows(stamped_rows(count))
        entries = [(("data", *key), tensor) for key, tensor in zip(rows.keys, rows.tensors, strict=True)]
        message = compose(Verb.EXTEND, entries, static=spec_static(rows.spec), rows=rows.count)
        assert message.rows == count
        layouts.append(message.layout)
    assert layouts[0] is layouts[1]


def test_the_same_parts_are_the_same_object() -> None:
    leaves = (Leaf(("x",), torch.int8, ()),)
    assert layout_for(leaves, (Axis.ROWS,), "{}") is layout_for(leaves, (Axis.ROWS,), "{}")
    assert layout_for(leaves, (Axis.ROWS,), "{}") != layout_for(leaves, (Axis.ONE,), "{}")


def test_tensors_are_found_by_key() -> None:
    message = compose(Verb.GET, [(("index",), torch.arange(3)), (("next", "reward"), torch.ones(3))])
    assert torch.equal(message.tensor("index"), torch.arange(3))
    assert message.optional("next", "reward") is message.tensor("next", "reward")
    assert message.optional("nothing") is None
    with pytest.raises(KeyError, match=r"next\.done"):
        message.tensor("next", "done")


def test_records_are_rows_again() -> None:
    data = stamped_rows(4)
    rows = flatten_rows(data)
    entries = [(("data", *key), tensor) for key, tensor in zip(rows.keys, rows.tensors, strict=True)]
    index = (("index",), torch.arange(4))
    found = compose(Verb.SET, [index, *entries], static=spec_static(rows.spec), rows=4).records()
    assert found.count == 4
    assert (found.build() == data).all()
    with pytest.raises(LayoutError):
        compose(Verb.SET, [index, *entries], rows=4).records()
    with pytest.raises(LayoutError):
        compose(Verb.SET, [index], static=spec_static(rows.spec)).records()


def test_arguments_have_defaults() -> None:
    message = Message(Verb.SAMPLE, arguments=(7,))
    assert message.argument(0) == 7
    assert message.argument(1) == 0
    assert message.argument(5, -1) == -1
    assert message.layout is EMPTY


def test_a_text_that_is_none_is_shown_anyway() -> None:
    broken = torch.tensor([0xFF, 0x61], dtype=torch.uint8)
    assert text_of(Message(Verb.STATS, TEXT, [broken], items=2)) == "\ufffda"
