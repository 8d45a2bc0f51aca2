"""Packing: what goes in comes out, and nothing is made of what a peer merely claims."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_service.arena import ALIGNMENT, Arena
from replay_service.errors import LayoutError, ReplayError
from replay_service.structure import Leaf
from replay_service.wire.layout import DTYPES, Axis, Layout, LayoutTable
from replay_service.wire.message import EMPTY, TEXT, Message, compose, text_of
from replay_service.wire.packing import (
    HEADER_BYTES,
    LARGEST_LAYOUT_BYTES,
    LARGEST_MESSAGE_BYTES,
    Frame,
    ProtocolError,
    UnknownLayoutError,
    begin,
    known_layouts,
    pack,
    read_header,
    unpack,
)
from replay_service.wire.verbs import Verb
from tests.wire.layouts import filled, messages, same_bits

PLACES = ["magic", "request_id", "verb", "status", "digest", "rows", "items", "payload", "layout_bytes", "known_reply"]


def changed(frame: Frame, **values: int) -> Frame:
    """A copy of a frame with other numbers in its header."""
    copy = frame.copy()
    for name, value in values.items():
        struct.pack_into("<q", copy.data, 8 * PLACES.index(name), value)
    return copy


def example(rows: int = 3) -> Message:
    return compose(Verb.EXTEND, [(("data", "x"), torch.arange(rows * 2.0).view(rows, 2))], arguments=(-1,))


@given(messages())
def test_what_goes_in_comes_out(message: Message) -> None:
    arena = Arena()
    table = known_layouts()
    for with_layout in (True, False):
        frame = pack(message, arena.take, with_layout=with_layout)
        assert frame.ctypes.data % ALIGNMENT == 0
        header = read_header(frame)
        assert header.frame_bytes == frame.size
        found = unpack(frame, table)
        assert found.layout == message.layout
        for name in ("verb", "rows", "items", "status", "request_id", "known_reply"):
            assert getattr(found, name) == getattr(message, name) == getattr(header, name, getattr(message, name))
        given_arguments = message.arguments
        assert found.arguments == given_arguments + (0,) * (6 - len(given_arguments))
        for tensor, original in zip(found.tensors, message.tensors, strict=True):
            assert same_bits(tensor, original)
            assert tensor.is_contiguous()
            if tensor.numel():
                assert tensor.data_ptr() % ALIGNMENT == 0


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("axis", Axis)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 1, 3)])
def test_every_dtype_on_every_axis(dtype: torch.dtype, axis: Axis, shape: tuple[int, ...]) -> None:
    layout = Layout((Leaf(("x",), dtype, shape),), (axis,))
    size = {Axis.ROWS: (4, *shape), Axis.ITEMS: (5, *shape), Axis.ONE: shape}[axis]
    tensor = filled(dtype, size, torch.Generator().manual_seed(3))
    message = Message(Verb.GET, layout, [tensor], rows=4, items=5)
    found = unpack(pack(message, Arena().take, with_layout=True), known_layouts())
    assert same_bits(found.tensor("x"), tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).view(3, 4).t(),
        torch.arange(12.0)[::3],
        torch.ones(1, 1).expand(5, 3),
        torch.arange(4.0, requires_grad=True),
        torch.tensor([1 + 2j, 3 - 1j]).conj(),
        torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
    ],
    ids=["transposed", "strided", "expanded", "grad", "conjugate", "negative"],
)
def test_views_of_any_kind_are_copied_in(tensor: torch.Tensor) -> None:
    found = unpack(pack(compose(Verb.EXTEND, [(("x",), tensor)]), Arena().take, with_layout=True), known_layouts())
    assert torch.equal(found.tensor("x"), tensor.detach())
    assert not found.tensor("x").requires_grad


def test_rows_can_be_gathered_straight_into_a_frame() -> None:
    message = example()
    frame, outs = begin(message, Arena().take, with_layout=True)
    outs[0].fill_(7.0)
    assert (unpack(frame, known_layouts()).tensor("data", "x") == 7.0).all()
    outs[0].zero_()
    assert (unpack(frame, known_layouts()).tensor("data", "x") == 0.0).all()


def test_tensors_are_views_of_the_frame() -> None:
    frame = pack(example(), Arena().take, with_layout=True)
    tensor = unpack(frame, known_layouts()).tensor("data", "x")
    frame[HEADER_BYTES : HEADER_BYTES + 4] = 0
    before = tensor[0, 1].item()
    frame[HEADER_BYTES + 4 : HEADER_BYTES + 8] = 0
    assert before == 1.0
    assert tensor[0, 1].item() == 0.0


def test_a_layout_is_sent_once_and_asked_for_when_it_is_forgotten() -> None:
    table = known_layouts(limit=3)
    frame = pack(example(), Arena().take, with_layout=False)
    with pytest.raises(UnknownLayoutError):
        unpack(frame, table)
    unpack(pack(example(), Arena().take, with_layout=True), table)
    assert unpack(frame, table).rows == 3
    for number in range(3):
        other = compose(Verb.EXTEND, [(("data", f"y{number}"), torch.zeros(2))])
        unpack(pack(other, Arena().take, with_layout=True), table)
    with pytest.raises(UnknownLayoutError):
        unpack(frame, table)


def test_every_end_knows_empty_messages_and_texts_for_ever() -> None:
    table = known_layouts(limit=2)
    for number in range(5):
        other = compose(Verb.EXTEND, [(("data", f"y{number}"), torch.zeros(2))])
        unpack(pack(other, Arena().take, with_layout=True), table)
    assert unpack(pack(Message(Verb.LENGTH), Arena().take, with_layout=False), table).layout == EMPTY
    words = "größer — 大".encode()
    text = Message(Verb.STATS, TEXT, [torch.frombuffer(bytearray(words), dtype=torch.uint8)], items=len(words))
    assert text_of(unpack(pack(text, Arena().take, with_layout=False), table)) == words.decode()


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"magic": 0}, "protocol version"),
        ({"magic": -1}, "protocol version"),
        ({"verb": 0}, "verb"),
        ({"verb": 99}, "verb"),
        ({"rows": -1}, "sizes"),
        ({"rows": 2**62}, "sizes"),
        ({"items": -1}, "sizes"),
        ({"items": 2**63 - 1}, "sizes"),
        ({"payload": -64}, "sizes"),
        ({"payload": 63}, "sizes"),
        ({"payload": LARGEST_MESSAGE_BYTES + 64}, "sizes"),
        ({"payload": 2**62}, "sizes"),
        ({"layout_bytes": -1}, "sizes"),
        ({"layout_bytes": LARGEST_LAYOUT_BYTES + 1}, "sizes"),
        ({"payload": LARGEST_MESSAGE_BYTES}, "as long as"),
        ({"payload": 0}, "as long as"),
        ({"layout_bytes": 0}, "as long as"),
        ({"rows": 2**40}, "must fit"),
        ({"rows": 2}, "payload"),
        ({"rows": 0}, "payload"),
    ],
)
def test_a_header_that_lies_is_refused(values: dict[str, int], match: str) -> None:
    frame = changed(pack(example(20), Arena().take, with_layout=True), **values)
    with pytest.raises(ProtocolError, match=match):
        unpack(frame, known_layouts())


def test_a_name_that_is_not_the_texts_is_refused() -> None:
    table = known_layouts()
    with pytest.raises(LayoutError, match="digest"):
        unpack(changed(pack(example(), Arena().take, with_layout=True), digest=12345), table)
    assert table.get(12345) is None


def test_rows_without_bytes_allocate_nothing() -> None:
    layout = Layout((Leaf(("x",), torch.float32, (0, 3)),), (Axis.ROWS,))
    frame = pack(Message(Verb.EXTEND, layout, [torch.empty(0, 0, 3)]), Arena().take, with_layout=True)
    found = unpack(changed(frame, rows=2**40), known_layouts())
    assert found.tensors[0].shape == (2**40, 0, 3)
    assert found.tensors[0].numel() == 0


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1])
def test_too_short_for_a_header(size: int) -> None:
    with pytest.raises(ProtocolError, match="header"):
        read_header(np.zeros(size, np.uint8))


@given(messages(), st.data())
def test_a_frame_with_random_damage_is_refused_or_read_but_nothing_else(message: Message, data: st.DataObject) -> None:
    frame = pack(message, Arena().take, with_layout=True).copy()
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, frame.size - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 3))
    frame = frame[: frame.size - cut] if cut else frame
    table = LayoutTable(8)
    tracemalloc.start()
    try:
        found = unpack(frame, table)
    except ReplayError:
        assert len(table) <= 1
    else:
        assert sum(tensor.nbytes for tensor in found.tensors) <= frame.size
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 2**20


@settings(max_examples=300)
@given(st.binary(min_size=0, max_size=400))
def test_random_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(ReplayError):
        unpack(np.frombuffer(content, np.uint8).copy(), known_layouts())
