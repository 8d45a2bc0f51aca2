"""How a forked process and its relay put what they say."""

from __future__ import annotations

from clients.relay_frames import bytes_of, frame_of, taken_from, text_of


def test_messages_come_out_one_by_one_however_they_were_cut() -> None:
    messages = [{"id": 1, "verb": "look"}, {"id": 2, "value": text_of(bytes(range(256)))}]
    stream, received, found = b"".join(map(frame_of, messages)), bytearray(), []
    for place in range(len(stream)):
        received += stream[place : place + 1]
        found += [message for message in [taken_from(received)] if message is not None]
    assert found == messages
    assert bytes_of(found[1]["value"]) == bytes(range(256))
    assert not received


def test_nothing_stays_nothing() -> None:
    assert bytes_of(text_of(None)) is None
    assert bytes_of(text_of(b"")) == b""
