"""The channel within one process: the whole path of packing, dispatch and unpacking, without a socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replay_service.arena import Arena
from replay_service.errors import ClosedError
from replay_service.wire.conversation import Conversation, checked
from replay_service.wire.message import Message
from replay_service.wire.packing import Frame

__all__ = ["InprocChannel"]

Serve = Callable[[Frame, Any], tuple[Frame, Any]]
"""A service's door: a request frame and its objects in, the reply's out."""


class InprocChannel:
    """Hands frames straight to a service in the same process.

    Args:
        serve: the door of the service, `Dispatch.serve`.
    """

    kind = "inproc"
    carries_objects = True

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._conversation = Conversation()
        self._arena = Arena()
        self._closed = False

    def call(self, request: Message, timeout_s: float) -> Message:
        """Sends a request and returns its reply."""
        return checked(self.submit(request, timeout_s).result(timeout_s))

    def submit(self, request: Message, timeout_s: float) -> Answered:
        """Sends a request; it is answered when this returns."""
        if self._closed:
            raise ClosedError("channel must be open; it was closed")
        reply = self._exchange(request, with_layout=False)
        if self._conversation.is_forgotten(reply):
            reply = self._exchange(request, with_layout=True)
        return Answered(reply)

    def close(self) -> None:
        """Refuses further calls."""
        self._closed = True

    def _exchange(self, request: Message, *, with_layout: bool) -> Message:
        frame = self._conversation.request(request, self._arena.take, with_layout=with_layout)
        answer, objects = self._serve(frame, request.objects)
        reply = self._conversation.reply(request, answer)
        reply.objects = objects
        return reply


class Answered:
    """A request that has its reply."""

    def __init__(self, reply: Message) -> None:
        self._reply = reply

    def result(self, timeout_s: float) -> Message:
        """The reply."""
        return self._reply

    def done(self) -> bool:
        """True."""
        return True

    @property
    def settled(self) -> bool:
        """True."""
        return True
