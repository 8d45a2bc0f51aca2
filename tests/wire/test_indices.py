"""Indices survive the way; what is none is refused at either end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from replay_service.arena import Arena
from replay_service.arguments import index_array
from replay_service.wire.indices import decode_index, encode_index, names_one, record_entries, records_named
from replay_service.wire.message import Message, compose
from replay_service.wire.packing import ProtocolError, known_layouts, pack, unpack
from replay_service.wire.verbs import Verb

INT64 = st.integers(-(2**63), 2**63 - 1)
BOUND = st.none() | INT64


def sent(index: Any) -> Any:
    arguments, entries = encode_index(index)
    frame = pack(compose(Verb.GET, entries, arguments=arguments), Arena().take, with_layout=True)
    found, single = decode_index(unpack(frame, known_layouts()))
    assert single == names_one(arguments)
    return found


@given(INT64)
def test_integers(index: int) -> None:
    assert sent(index) == index
    assert sent(np.int64(index)) == index
    assert sent(torch.tensor(index)) == index
    assert names_one(encode_index(index)[0])


@given(st.builds(slice, BOUND, BOUND, BOUND))
def test_slices(index: slice) -> None:
    assert sent(index) == index
    assert sent((3, index)) == (3, index)


def test_slices_beyond_64_bits_select_the_same() -> None:
    for index in (slice(2**80), slice(-(2**80), None), slice(1, 2**64, 2)):
        assert list(range(10))[sent(index)] == list(range(10))[index]


def test_an_ellipsis_is_everything() -> None:
    assert sent(...) == slice(None)


@given(st.lists(INT64, max_size=5))
def test_lists(index: list[int]) -> None:
    found = sent(index)
    assert (found.dtype, found.tolist()) == (torch.int64, index)


@pytest.mark.parametrize("shape", [(0,), (3,), (2, 3), (1, 0, 2)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_arrays(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    index = torch.ones(shape, dtype=dtype)
    for given_index in (index, index.numpy()):
        found = sent(given_index)
        assert found.dtype is (torch.bool if dtype is torch.bool else torch.int64)
        assert torch.equal(found, index.to(found.dtype))


def test_ranges_and_empty_lists() -> None:
    assert sent(range(4, 0, -2)).tolist() == [4, 2]
    assert (sent([]).dtype, sent([]).tolist()) == (torch.int64, [])
    assert sent([True, False]).dtype is torch.bool


def test_parts_name_cells_of_lanes() -> None:
    found = sent((torch.tensor([1, 2]), -1, slice(None, 3), np.array([True, False]), [0]))
    assert found[0].tolist() == [1, 2]
    assert found[1:3] == (-1, slice(None, 3))
    assert found[3].dtype is torch.bool
    assert found[4].tolist() == [0]
    assert sent(()) == ()


@pytest.mark.parametrize("key", ["observation", ("next", "reward"), ("größe",)])
def test_keys(key: Any) -> None:
    assert sent(key) == ((key,) if isinstance(key, str) else key)
    assert not names_one(encode_index(key)[0])


@pytest.mark.parametrize(
    "index", [1.5, None, True, [1.5], torch.ones(3), (True,), (1, None), {}, {1}, slice("a"), slice(1.5), object()]
)
def test_what_is_no_index(index: Any) -> None:
    with pytest.raises(TypeError, match="index"):
        encode_index(index)


@pytest.mark.parametrize("index", [2**63, -(2**63) - 1, (0, 2**64), (0,) * 17])
def test_what_does_not_fit(index: Any) -> None:
    with pytest.raises(IndexError, match="index"):
        encode_index(index)


def test_array_of_keeps_flags_and_refuses_fractions() -> None:
    assert index_array([True, False]).dtype is torch.bool
    assert index_array(3).tolist() == 3
    with pytest.raises(TypeError, match="float32"):
        index_array(torch.ones(2))


def text(name: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(name.encode()), dtype=torch.uint8)


@pytest.mark.parametrize(
    "message",
    [
        Message(Verb.GET),
        Message(Verb.GET, arguments=(99,)),
        Message(Verb.GET, arguments=(4, -1)),
        Message(Verb.GET, arguments=(4, 2**62)),
        compose(Verb.GET, [(("index", "0"), torch.arange(3))], arguments=(4, 1, 0)),
        compose(Verb.GET, [(("index", "0"), torch.arange(3))], arguments=(4, 1, 1)),
        compose(Verb.GET, [(("index", "0"), torch.arange(4))], arguments=(4, 1, 3)),
        compose(Verb.GET, [(("key",), text("[]"))], arguments=(5,)),
        compose(Verb.GET, [(("key",), text("[1]"))], arguments=(5,)),
        compose(Verb.GET, [(("key",), text('"a"'))], arguments=(5,)),
    ],
)
def test_a_message_that_carries_no_index(message: Message) -> None:
    with pytest.raises(ProtocolError, match="index"):
        decode_index(message)


def test_records_by_their_numbers() -> None:
    def carried(index: Any) -> Any:
        return records_named(compose(Verb.UPDATE_PRIORITY, record_entries(index)))

    assert carried(3).tolist() == [3]
    assert carried([1, 2]).tolist() == [1, 2]
    for coordinates in ((torch.tensor([0, 1]), [2, 3]), torch.tensor([[0, 2], [1, 3]])):
        assert [part.tolist() for part in carried(coordinates)] == [[0, 1], [2, 3]]
    with pytest.raises(TypeError, match="index"):
        record_entries([0.5])
    with pytest.raises(IndexError, match="equally long"):
        record_entries((torch.tensor([0, 1]), torch.tensor([0])))


def test_records_of_several_buffers() -> None:
    index = {"buffer_ids": torch.tensor([[1, 0]]), "index": torch.tensor([[5, 6]])}
    for named in (index, TensorDict(index, [1, 2])):
        arguments, entries = encode_index(named)
        found, single = decode_index(compose(Verb.GET, entries, arguments=arguments))
        assert not single
        assert found.batch_size == (1, 2)
        assert found["index"].tolist() == [[5, 6]]
    written = TensorDict({**index, "index_generation": torch.tensor([[0, 1]])}, [1, 2])
    carried = records_named(compose(Verb.EXTEND, record_entries(written)))
    assert (carried == written).all()
    one = records_named(compose(Verb.ADD, record_entries(written[0, 1])))
    assert (one.batch_size, int(one["index"])) == ((), 6)
    with pytest.raises(TypeError, match=r"index \(\['index'\]\) must hold \['buffer_ids', 'index'\]"):
        encode_index({"index": torch.tensor([1])})
    with pytest.raises(KeyError, match="buffer_ids"):
        records_named(compose(Verb.GET, [(("index", "index"), torch.tensor([1]))]))
