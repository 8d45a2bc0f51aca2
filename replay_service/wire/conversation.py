"""What one client remembers of a service: which layouts it has sent, and which reply layouts it can read."""

from __future__ import annotations

import itertools
import threading

from torch import Tensor

from replay_service.wire.failures import UNKNOWN_LAYOUT, error_from
from replay_service.wire.layout import LayoutTable
from replay_service.wire.message import EMPTY, TEXT, Message, text_of
from replay_service.wire.packing import Frame, Take, TakeFlat, known_layouts, pack, pack_apart, unpack

__all__ = ["Conversation", "checked"]


class Conversation:
    """Packs requests and unpacks replies; the layouts' texts travel only when the other end needs them."""

    def __init__(self, table_limit: int = 256) -> None:
        self._replies: LayoutTable = known_layouts(table_limit)
        self._announced: LayoutTable = known_layouts(table_limit)
        self._expected: dict[tuple[int, int], int] = {}
        self._numbers = itertools.count(1)
        self._limit = table_limit
        self._lock = threading.Lock()

    def request(
        self, message: Message, take: Take, *, with_layout: bool = False, take_flat: TakeFlat | None = None
    ) -> Frame:
        """The frame of a request; `with_layout` repeats the layout's text, for a service that has forgotten it.

        With `take_flat` the payload is put into memory of its own, `message.flat`.
        """
        with self._lock:
            message.request_id = next(self._numbers)
            message.known_reply = self._expected.get((message.verb, message.layout.digest), 0)
            if message.known_reply and self._replies.get(message.known_reply) is None:
                message.known_reply = 0
            fresh = with_layout or self._announced.get(message.layout.digest) is None
            if fresh:
                self._announced.add(message.layout)
        if take_flat is not None:
            return pack_apart(message, take, take_flat, with_layout=fresh)
        return pack(message, take, with_layout=fresh)

    def reply(self, request: Message, frame: Frame, flat: Tensor | None = None) -> Message:
        """The reply in `frame`; its tensors are views of it, or of `flat`, where the payload came apart."""
        with self._lock:
            message = unpack(frame, self._replies, flat)
            if message.status == 0 and message.layout is not EMPTY and message.layout is not TEXT:
                if len(self._expected) >= self._limit:
                    self._expected.clear()
                self._expected[(request.verb, request.layout.digest)] = message.layout.digest
        return message

    @staticmethod
    def is_forgotten(reply: Message) -> bool:
        """Whether the service asks for the text of the request's layout."""
        return reply.status == UNKNOWN_LAYOUT


def checked(reply: Message) -> Message:
    """The reply, if it is a good one; else the error it reports is raised."""
    if reply.status:
        raise error_from(reply.status, text_of(reply))
    return reply
