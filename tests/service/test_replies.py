"""Replies that carry records, and what a handle makes of them."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from clients.decoding import decode_records, decode_sample
from replay_service import LazyTensorStorage, TensorDictReplayBuffer
from replay_service.arena import Arena
from replay_service.errors import LayoutError
from replay_service.service.replies import Gather, records, sampled, tensors_of
from replay_service.wire.message import Message
from replay_service.wire.packing import begin, known_layouts, pack, unpack
from replay_service.wire.verbs import Verb
from tests.rows import assert_rows_are_whole, stamped_rows

TAKE = Arena().take
Pair = namedtuple("Pair", ["first", "second"])


def sent(message: Message) -> Message:
    found = unpack(pack(message, TAKE, with_layout=True), known_layouts())
    found.objects = message.objects
    return found


def buffer() -> TensorDictReplayBuffer:
    made = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4)
    made.extend(stamped_rows(10))
    return made


def test_a_sample_is_described_before_it_is_read() -> None:
    gather = Gather(Verb.SAMPLE, buffer(), 6, with_info=True)
    with pytest.raises(RuntimeError, match="draw"):
        gather.fill([])
    message = gather.draw()
    assert message.rows == 6
    frame, views = begin(message, TAKE, with_layout=True)
    gather.fill(views)
    batch = decode_sample(unpack(frame, known_layouts()), False)
    assert_rows_are_whole(batch)
    assert torch.equal(batch["index"], batch["action"])


def test_the_layout_of_samples_does_not_depend_on_their_size() -> None:
    served = buffer()
    layouts = {Gather(Verb.SAMPLE, served, size, with_info=True).draw().layout.digest for size in (1, 2, 7, 300)}
    assert len(layouts) == 1


def test_info_keeps_its_kinds() -> None:
    info = {
        "index": torch.arange(3),
        "coordinates": (torch.arange(3), torch.ones(3, dtype=torch.int64)),
        "array": np.arange(3.0),
        "number": 2.5,
        "count": 3,
        "flag": True,
    }
    assert [kind for _, kind, _ in tensors_of(info)] == ["tensor", "tuple", "tensor", "number", "number", "number"]
    data, found = decode_sample(sent(sampled(Verb.SAMPLE, torch.arange(3), info, merges=False)), True)
    assert data.tolist() == [0, 1, 2]
    assert found["index"].tolist() == [0, 1, 2]
    assert [part.tolist() for part in found["coordinates"]] == [[0, 1, 2], [1, 1, 1]]
    assert found["array"].tolist() == [0.0, 1.0, 2.0]
    assert (found["number"], found["count"], found["flag"]) == (2.5, 3, True)
    with pytest.raises(LayoutError, match=r"info\.why"):
        tensors_of({"why": "because"})


def test_a_sample_that_is_no_tensor_is_an_object() -> None:
    message = sampled(Verb.SAMPLE, ["a", "b"], {"index": torch.arange(2)}, merges=False)
    assert not message.tensors
    assert decode_sample(message, False) == ["a", "b"]
    assert decode_sample(message, True)[1]["index"].tolist() == [0, 1]


@pytest.mark.parametrize(
    "data",
    [
        torch.arange(6).view(3, 2),
        {"a": torch.arange(3), "b": {"c": torch.ones(3, 2)}},
        (torch.arange(3), [torch.ones(3)]),
        Pair(torch.arange(3), torch.ones(3)),
        TensorDict({"a": torch.arange(6).view(3, 2), "n": {"b": torch.ones(3, 2, 1)}}, [3, 2]),
    ],
    ids=["tensor", "dict", "tuple", "named tuple", "two batch dimensions"],
)
def test_records_keep_their_form(data: Any) -> None:
    for single in (False, True):
        found = decode_records(sent(records(Verb.GET, data, single)))
        assert type(found) is type(data)
        if isinstance(data, TensorDict):
            assert found.batch_size == data.batch_size
            assert (found == data).all()
        else:
            assert str(found) == str(data)


def test_one_record_has_no_leading_dimension() -> None:
    found = decode_records(sent(records(Verb.GET, stamped_rows(3)[1], single=True)))
    assert found.batch_size == ()
    assert int(found["action"]) == 1
    assert int(decode_records(sent(records(Verb.GET, torch.tensor(7), single=True)))) == 7


def test_no_records_are_records() -> None:
    found = decode_records(sent(records(Verb.GET, stamped_rows(0), single=False)))
    assert found.batch_size == (0,)
    assert found["next", "observation"].shape == (0, 4)


def test_records_that_are_no_tensors_are_objects() -> None:
    assert decode_records(records(Verb.GET, "text", single=True)) == "text"
    assert decode_records(records(Verb.GET, ["a", torch.ones(1)], single=False))[0] == "a"
