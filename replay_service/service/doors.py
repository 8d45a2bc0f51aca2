"""The service's ends of tensor channels: one thread per client."""

from __future__ import annotations

import itertools
import threading
from typing import Any

from replay_service.errors import ReplayError
from replay_service.wire.rendezvous import (
    CLIENT_RANK,
    CROWDED,
    NO,
    SERVICE_RANK,
    YES,
    Mailbox,
    MailboxStore,
    make_group,
    new_token,
    payload_path,
)
from replay_service.wire.tensor_group import Serves, serve_link
from replay_service.wire.tensor_link import Link
from replay_service.wire.yielding import processors

__all__ = ["Doors"]

OPEN_TIMEOUT_S = 20.0


class Doors:
    """Opens channels and serves each on a thread of its own.

    Args:
        serve: the service's door, `Dispatch.serve`.
        address: this node's own address, which listeners are bound to.
    """

    def __init__(self, serve: Serves, address: str) -> None:
        self._serve = serve
        self._address = address
        self._numbers = itertools.count(1)
        self._mailboxes: dict[int, Mailbox] = {}
        self._lock = threading.Lock()
        self._open = 0

    def open(self, backend: str = "gloo") -> dict[str, Any]:
        """The number and the token of a new channel, which waits for its client from now on."""
        number, token, mailbox = next(self._numbers), new_token(), Mailbox()
        with self._lock:
            self._mailboxes[number] = mailbox
            crowded = self._open + len(self._mailboxes) > processors()
        mailbox.put(CROWDED, YES if crowded else NO)
        threading.Thread(
            target=self._run,
            args=(number, token, mailbox, backend, crowded),
            name=f"replay-channel-{number}",
            daemon=True,
        ).start()
        return {"number": number, "token": token}

    def put(self, number: int, key: str, value: bytes) -> None:
        """Publishes a coordinate of the client's end."""
        self._mailbox(number).put(key, value)

    def look(self, number: int, key: str) -> bytes | None:
        """A coordinate of the service's end, or None if it is not there yet."""
        return self._mailbox(number).look(key)

    def __len__(self) -> int:
        """Channels that are being served."""
        return self._open

    def _mailbox(self, number: int) -> Mailbox:
        with self._lock:
            mailbox = self._mailboxes.get(number)
        if mailbox is None:
            raise KeyError(f"channel ({number}) must be one that is being opened")
        return mailbox

    def _run(self, number: int, token: bytes, mailbox: Mailbox, backend: str, crowded: bool) -> None:
        try:
            store = MailboxStore(mailbox, OPEN_TIMEOUT_S)
            group = make_group(store, SERVICE_RANK, self._address, OPEN_TIMEOUT_S, crowded=crowded)
            link = Link(group, CLIENT_RANK, payload_path(store, SERVICE_RANK, backend, OPEN_TIMEOUT_S))
        except ReplayError:
            self._forget(number)
            return  # the client did not come; it was told so on its own end
        with self._lock:
            self._open += 1
        try:
            # NCCL comes back to the mailbox at its first payload; gloo has found its peer when the token was shown.
            forget = (lambda: None) if backend == "nccl" else (lambda: self._forget(number))
            serve_link(link, token, self._serve, on_open=forget)
        finally:
            self._forget(number)
            with self._lock:
                self._open -= 1

    def _forget(self, number: int) -> None:
        """Drops a mailbox; only once the client has shown its token is it sure to need it no more."""
        with self._lock:
            self._mailboxes.pop(number, None)
