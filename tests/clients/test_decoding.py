"""From replies to what a caller gets."""

from __future__ import annotations

import torch

from clients.decoding import decode_records, decode_sample
from replay_service.service.replies import records, sampled
from replay_service.wire.message import Message, compose, static_text
from replay_service.wire.verbs import Verb
from tests.rows import stamped_rows

SPEC = ["td", 1, [["a", "t"]]]
INDEX = torch.tensor([4, 5])


def reply(merges: bool, finished: bool) -> Message:
    static = {"spec": SPEC, "info": [["index", "tensor"]], "merges": merges, "finished": finished}
    entries = [(("data", "a"), torch.arange(2)), (("info", "index"), INDEX)]
    return compose(Verb.SAMPLE, entries, static=static_text(static), rows=2)


def test_info_becomes_entries_where_the_buffer_merges_it() -> None:
    assert torch.equal(decode_sample(reply(True, False), False)["index"], INDEX)
    assert set(decode_sample(reply(False, False), False).keys()) == {"a"}
    assert set(decode_sample(reply(True, True), False).keys()) == {"a"}  # the service has merged it already


def test_info_is_given_beside_the_data_when_it_is_asked_for() -> None:
    data, info = decode_sample(reply(True, False), True)
    assert torch.equal(info["index"], INDEX)
    assert torch.equal(data["index"], INDEX)


def test_what_is_decoded_is_a_view_of_the_reply() -> None:
    message = records(Verb.GET, stamped_rows(3), single=False)
    found = decode_records(message)
    assert found["action"].data_ptr() == message.tensor("data", "action").data_ptr()


def test_objects_are_given_as_they_are() -> None:
    message = sampled(Verb.SAMPLE, ["a"], {"index": INDEX}, merges=False)
    assert decode_sample(message, False) == ["a"]
    assert decode_records(Message(Verb.GET, objects=({"a": 1},))) == {"a": 1}
