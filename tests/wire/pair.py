"""A tensor channel between two threads of one process, or between two processes: a real gloo pair, no Ray."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from replay_service.wire.rendezvous import (
    CLIENT_RANK,
    SERVICE_RANK,
    Mailbox,
    MailboxStore,
    RemoteStore,
    make_group,
    make_payload_path,
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


def opened(store: Any, rank: int, peer: int, apart: bool) -> Link:
    """One end."""
    group = make_group(store, rank, ADDRESS, TIMEOUT_S)
    path = make_payload_path(store, rank, "gloo", torch.device("cpu"), TIMEOUT_S) if apart else None
    return Link(group, peer, path)


@contextmanager
def connected(serve: Any, *, apart: bool = False) -> Iterator[Pair]:
    """A pair whose service answers with `serve`; `apart` lets payloads travel on groups of their own (gloo for NCCL)."""
    mailbox, token = Mailbox(), new_token()

    def run() -> None:
        store = MailboxStore(mailbox, TIMEOUT_S)
        serve_link(opened(store, SERVICE_RANK, CLIENT_RANK, apart), token, serve)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    store = RemoteStore(mailbox.put, mailbox.look, TIMEOUT_S)
    link = opened(store, CLIENT_RANK, SERVICE_RANK, apart)
    try:
        yield Pair(link, token, thread)
    finally:
        link.close()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
