"""A tensor channel between two threads of one process, or between two processes: a real gloo pair, no Ray."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from replay_service.wire.rendezvous import (
    CLIENT_RANK,
    SERVICE_RANK,
    Mailbox,
    MailboxStore,
    RemoteStore,
    make_group,
    new_token,
)
from replay_service.wire.tensor_group import TensorChannel, serve_link, show_token
from replay_service.wire.tensor_link import Link

ADDRESS = "127.0.0.1"
TIMEOUT_S = 20.0


@dataclass
class Pair:
    """Both ends: the client's link, and the thread that serves the other."""

    link: Link
    token: bytes
    thread: threading.Thread

    def channel(self) -> TensorChannel:
        """The client's channel, opened with the right token."""
        show_token(self.link, self.token, TIMEOUT_S)
        return TensorChannel(self.link, "the service")


@contextmanager
def connected(serve: Any) -> Iterator[Pair]:
    """A pair whose service answers with `serve`."""
    mailbox, token = Mailbox(), new_token()

    def run() -> None:
        group = make_group(MailboxStore(mailbox, TIMEOUT_S), SERVICE_RANK, ADDRESS, TIMEOUT_S)
        serve_link(Link(group, CLIENT_RANK), token, serve)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    store = RemoteStore(mailbox.put, mailbox.look, TIMEOUT_S)
    link = Link(make_group(store, CLIENT_RANK, ADDRESS, TIMEOUT_S), SERVICE_RANK)
    try:
        yield Pair(link, token, thread)
    finally:
        link.close()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
