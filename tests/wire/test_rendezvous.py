"""Stores, tokens and groups."""

from __future__ import annotations

import threading

import pytest

from replay_service.errors import ReplayTimeoutError, ServiceUnavailableError
from replay_service.wire.rendezvous import (
    SERVICE_RANK,
    Mailbox,
    MailboxStore,
    RemoteStore,
    is_token,
    make_group,
    new_token,
)


def test_tokens_differ_and_only_the_right_one_is_taken() -> None:
    first, second = new_token(), new_token()
    assert first != second
    assert is_token(first, bytes(first))
    assert not is_token(second, first)
    assert not is_token(b"", first)


def test_a_value_wakes_who_waits_for_it() -> None:
    mailbox = Mailbox()
    found: list[bytes] = []
    waiting = threading.Thread(target=lambda: found.append(mailbox.wait("key", 10.0)))
    waiting.start()
    mailbox.put("other", b"1")
    mailbox.put("key", b"2")
    waiting.join(10.0)
    assert found == [b"2"]
    assert mailbox.look("none") is None


@pytest.mark.parametrize("remote", [False, True])
def test_stores_see_each_others_values(remote: bool) -> None:
    mailbox = Mailbox()
    other = MailboxStore(mailbox, 0.05)
    store = RemoteStore(mailbox.put, mailbox.look, 0.05) if remote else MailboxStore(mailbox, 0.05)
    store.set("a", "text")
    other.set("b", b"bytes")
    assert other.get("a") == b"text"
    assert store.get("b") == b"bytes"
    assert store.check(["a", "b"])
    assert not store.check(["a", "c"])
    store.wait(["a", "b"])
    with pytest.raises(ReplayTimeoutError):
        store.get("c")


def test_a_group_whose_other_end_does_not_come_is_an_error() -> None:
    with pytest.raises(ServiceUnavailableError, match=r"127\.0\.0\.1"):
        make_group(MailboxStore(Mailbox(), 0.1), SERVICE_RANK, "127.0.0.1", 0.2)
