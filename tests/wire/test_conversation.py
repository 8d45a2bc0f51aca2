"""What the two ends remember of each other."""

from __future__ import annotations

import pytest
import torch

from replay_service.arena import Arena
from replay_service.errors import EmptyBufferError
from replay_service.wire.conversation import Conversation, checked
from replay_service.wire.failures import UNKNOWN_LAYOUT, code_of
from replay_service.wire.message import TEXT, Message, compose
from replay_service.wire.packing import Frame, known_layouts, pack, read_header, unpack
from replay_service.wire.verbs import Verb

TAKE = Arena().take


def request(name: str = "x") -> Message:
    return compose(Verb.SAMPLE, [((name,), torch.zeros(2))])


def reply(name: str = "y", *, with_layout: bool, to: Message | None = None) -> Frame:
    message = compose(Verb.SAMPLE, [((name,), torch.arange(3))])
    message.request_id = to.request_id if to else 0
    return pack(message, TAKE, with_layout=with_layout)


def error_reply(code: int, words: str) -> Frame:
    text = torch.frombuffer(bytearray(words.encode()), dtype=torch.uint8)
    return pack(Message(Verb.SAMPLE, TEXT, [text], items=text.numel(), status=code), TAKE, with_layout=False)


def test_requests_are_numbered_and_a_layout_is_announced_once() -> None:
    conversation = Conversation()
    headers = [read_header(conversation.request(request(), TAKE)) for _ in range(3)]
    assert [header.request_id for header in headers] == [1, 2, 3]
    assert [header.layout_bytes > 0 for header in headers] == [True, False, False]
    again = read_header(conversation.request(request(), TAKE, with_layout=True))
    assert again.layout_bytes > 0
    other = read_header(conversation.request(request("z"), TAKE))
    assert other.layout_bytes > 0
    assert not read_header(conversation.request(Message(Verb.LENGTH), TAKE)).layout_bytes


def test_announcements_are_remembered_up_to_a_limit() -> None:
    conversation = Conversation(table_limit=4)
    for number in range(10):
        conversation.request(request(f"x{number}"), TAKE)
    assert read_header(conversation.request(request("x9"), TAKE)).layout_bytes == 0
    assert read_header(conversation.request(request("x0"), TAKE)).layout_bytes > 0


def test_a_reply_layout_is_asked_for_once_per_kind_of_request() -> None:
    conversation = Conversation()
    first = request()
    assert read_header(conversation.request(first, TAKE)).known_reply == 0
    found = conversation.reply(first, reply(with_layout=True))
    assert torch.equal(found.tensor("y"), torch.arange(3))
    second = request()
    assert read_header(conversation.request(second, TAKE)).known_reply == found.layout.digest
    assert torch.equal(conversation.reply(second, reply(with_layout=False)).tensor("y"), torch.arange(3))
    assert read_header(conversation.request(request("other"), TAKE)).known_reply == 0


def test_a_reply_layout_that_was_forgotten_is_asked_for_again() -> None:
    conversation = Conversation(table_limit=4)
    conversation.reply(request(), reply(with_layout=True))
    for number in range(6):
        conversation.reply(request(f"x{number}"), reply(f"y{number}", with_layout=True))
    assert read_header(conversation.request(request(), TAKE)).known_reply == 0


def test_a_service_that_forgot_says_so() -> None:
    conversation = Conversation()
    found = conversation.reply(request(), error_reply(UNKNOWN_LAYOUT, "which?"))
    assert conversation.is_forgotten(found)
    assert not conversation.is_forgotten(conversation.reply(request(), reply(with_layout=True)))


def test_an_error_reply_is_raised_and_teaches_no_layout() -> None:
    conversation = Conversation()
    found = conversation.reply(request(), error_reply(code_of(EmptyBufferError("")), "nothing there"))
    with pytest.raises(EmptyBufferError, match="nothing there"):
        checked(found)
    assert read_header(conversation.request(request(), TAKE)).known_reply == 0
    good = conversation.reply(request(), reply(with_layout=True))
    assert checked(good) is good


def test_what_one_end_packs_the_other_reads() -> None:
    conversation, service = Conversation(), known_layouts()
    for _ in range(2):
        found = unpack(conversation.request(request(), TAKE), service)
        assert torch.equal(found.tensor("x"), torch.zeros(2))
