"""The tensor channel: frames over a pair of gloo groups, one thread of the service per client.

The client posts memory for the reply before it sends a request, and says in the request how much; so a reply of the usual size is one
message, received where it will be used. Replies are answered in the order of the requests.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from replay_service.arena import Arena
from replay_service.errors import ClosedError, ReplayError, ReplayTimeoutError, ServiceUnavailableError
from replay_service.wire.channel import InFlight
from replay_service.wire.conversation import Conversation, checked
from replay_service.wire.message import Message
from replay_service.wire.packing import Frame, Take, TakeFlat, read_header
from replay_service.wire.rendezvous import TOKEN_BYTES, is_token
from replay_service.wire.tensor_link import REQUEST_TAG, Link, Receiving, Sending, reply_tag
from replay_service.wire.verbs import Verb

__all__ = ["TensorChannel", "serve_link", "show_token"]

STANDING_BYTES = 4 * 1024 * 1024
"""What a serving thread has posted for the next request; memory is only touched as far as requests fill it."""

STANDING = 2
"""How many of them."""

SMALLEST_REPLY_BYTES = 16 * 1024
LARGEST_BYTES = 1 << 34
DEFAULT_IN_FLIGHT = 16
SEND_TIMEOUT_S = 60.0
CLOSE_TIMEOUT_S = 1.0
OTHERS_WORD_S = 0.1
"""gloo tells all who wait on a pair at once; the thread whose time was over may be the last to come to say so."""

FOREVER_S = 10 * 365 * 24 * 3600.0


class Serves(Protocol):
    """A service's door, as `Dispatch.serve`."""

    def __call__(
        self,
        frame: Frame,
        objects: Any = None,
        *,
        take: Take | None = None,
        route: str = "",
        dense_only: bool = False,
        flat: Tensor | None = None,
        take_flat: TakeFlat | None = None,
    ) -> tuple[Frame, Any]: ...


def show_token(link: Link, token: bytes, timeout_s: float) -> None:
    """The client's first message: the secret it got over Ray."""
    link.send(np.frombuffer(token, np.uint8).copy(), REQUEST_TAG, TOKEN_BYTES, timeout_s)


def serve_link(
    link: Link,
    token: bytes,
    serve: Serves,
    *,
    on_open: Callable[[], None] = lambda: None,
    open_timeout_s: float = 10.0,
) -> None:
    """Answers one client until it is gone; runs on a thread of its own, which is all that a slow client can hold up.

    A wrong token ends it before anything else is read. A reply that a client does not take within a minute ends it, too.
    """
    try:
        shown = np.zeros(TOKEN_BYTES, np.uint8)
        link.finish(link.post(shown, REQUEST_TAG), open_timeout_s)
        if not is_token(shown.tobytes(), token):
            return
        on_open()
        arena = Arena(max_buffers=3)
        take_flat = None if link.payload is None else link.payload.take
        # While one request is answered, the next is received already.
        posted = deque(link.receive(np.empty(STANDING_BYTES, np.uint8), REQUEST_TAG) for _ in range(STANDING))
        while True:
            receiving = posted.popleft()
            frame = receiving.frame(FOREVER_S, arena.take, LARGEST_BYTES)
            header = read_header(frame)
            flat = link.payload_of(frame, SEND_TIMEOUT_S)
            reply, apart = serve(
                frame, take=arena.take, route="distributed", dense_only=True, flat=flat, take_flat=take_flat
            )
            link.send(reply, reply_tag(header.request_id), header.status, SEND_TIMEOUT_S, apart)
            if header.verb is Verb.CLOSE:
                return
            posted.append(link.receive(receiving.buffer, REQUEST_TAG))
            del frame, reply, flat, apart
    except ReplayError:
        return  # the client is gone, or does not keep to the protocol: its thread ends, everybody else goes on
    finally:
        link.close()


class TensorChannel:
    """The client's end.

    Args:
        link: an open link on which the token was shown.
        name: how errors call the service.
        in_flight: how many requests may be unanswered.
    """

    kind = "distributed"
    carries_objects = False

    def __init__(self, link: Link, name: str, in_flight: int = DEFAULT_IN_FLIGHT) -> None:
        self._link = link
        self._name = name
        self._conversation = Conversation()
        self._in_flight = InFlight(in_flight)
        self._sending = Arena(max_buffers=2)
        self._receiving = Arena(max_buffers=8)
        self._sizes: dict[Verb, int] = {}
        self._order = threading.Lock()
        self._closed = False
        self._timed_out = threading.Event()
        self._left = False

    @property
    def broken(self) -> bool:
        """Whether the pair is of no use any more; a new one has to be opened."""
        return self._link.broken

    def call(self, request: Message, timeout_s: float) -> Message:
        """Sends a request and waits for its reply."""
        return checked(self._send(request).result(timeout_s))

    def submit(self, request: Message, timeout_s: float) -> TensorPending:
        """Sends a request; waits up to `timeout_s` for a place among those in flight."""
        self._in_flight.admit(timeout_s)
        pending = self._send(request)
        self._in_flight.add(pending)
        return pending

    def close(self) -> None:
        """Says goodbye and lets go of the pair."""
        if self._closed:
            return
        self._closed = True
        if not self._link.broken:
            with contextlib.suppress(ReplayError):  # the service may be gone already
                goodbye = self._exchange(Message(Verb.CLOSE), with_layout=False)
                goodbye.frame(CLOSE_TIMEOUT_S, self._receiving.take)
        self._link.close()

    def leave_behind(self) -> None:
        """Makes this copy, in a process that was just forked, of no use: to wait on the pair would break it in the parent, too."""
        self._closed = self._left = True

    def resend(self, request: Message) -> Exchange:
        """Sends a request again with the text of its layout."""
        return self._exchange(request, with_layout=True)

    def receive(self, request: Message, exchange: Exchange, timeout_s: float) -> Message:
        """The reply to a request."""
        if self._left:
            raise ClosedError("request must be of this process; it was sent by the one that this was forked from")
        try:
            frame = exchange.frame(timeout_s, self._receiving.take)
            flat = self._link.payload_of(frame, timeout_s)
        except ReplayTimeoutError as error:
            self._timed_out.set()
            raise ReplayTimeoutError(
                f"timeout ({timeout_s} s) must cover the call; {self._name} has not answered"
            ) from error
        except ServiceUnavailableError as error:
            raise self._explained(error) from error
        self._sizes[request.verb] = frame.size
        return self._conversation.reply(request, frame, flat)

    def _send(self, request: Message) -> TensorPending:
        if self._closed:
            raise ClosedError("handle must be open; it was closed")
        return TensorPending(self, request, self._exchange(request, with_layout=False))

    def _exchange(self, request: Message, *, with_layout: bool) -> Exchange:
        with self._order:
            capacity = max(SMALLEST_REPLY_BYTES, self._sizes.get(request.verb, 0))
            request.status = capacity
            take_flat = None if self._link.payload is None else self._link.payload.take
            frame = self._conversation.request(
                request, self._sending.take, with_layout=with_layout, take_flat=take_flat
            )
            try:
                receiving = self._link.receive(self._receiving.take(capacity), reply_tag(request.request_id))
                return Exchange(receiving, self._link.start(frame, REQUEST_TAG, STANDING_BYTES, request.flat))
            except ServiceUnavailableError as error:
                raise self._explained(error) from error

    def _explained(self, error: ServiceUnavailableError) -> Exception:
        """What closed the pair under a call: `close`, or another call's timeout, if it was not a service that is gone."""
        if self._closed:
            return ClosedError("handle must be open; it was closed while this call was on its way")
        if self._timed_out.wait(OTHERS_WORD_S):
            return ReplayTimeoutError(f"channel to {self._name} must be opened anew; another call's timeout closed it")
        return ServiceUnavailableError(f"{self._name} must be alive and reachable; {error}")


class Exchange:
    """A request that is being sent, and the memory posted for its reply."""

    def __init__(self, receiving: Receiving, sending: Sending) -> None:
        self._receiving = receiving
        self._sending = sending

    def frame(self, timeout_s: float, take: Take) -> Frame:
        """The reply's frame; that of `Receiving.frame`."""
        frame = self._receiving.frame(timeout_s, take, LARGEST_BYTES)
        self._sending.finish(timeout_s)  # long done: it has been answered
        return frame


class TensorPending:
    """A request on its way over the tensor channel."""

    def __init__(self, channel: TensorChannel, request: Message, exchange: Exchange) -> None:
        self._channel = channel
        self._request = request
        self._exchange: Exchange | None = exchange
        self._reply: Message | None = None
        self._error: Exception | None = None
        self._lock = threading.Lock()
        self._watcher: threading.Thread | None = None

    @property
    def settled(self) -> bool:
        """Whether the reply was received and taken note of."""
        return self._reply is not None or self._error is not None

    def result(self, timeout_s: float) -> Message:
        """The reply."""
        # Another thread, such as the one of `done`, may be waiting already, and for longer.
        if not self._lock.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX)):
            raise ReplayTimeoutError(f"timeout ({timeout_s} s) must cover the call; it has not been answered")
        try:
            if self._error is not None:
                raise self._error
            if self._reply is None:
                try:
                    self._reply = self._received(timeout_s)
                except ReplayError as error:
                    self._error = error
                    raise
                self._exchange = None
            return self._reply
        finally:
            self._lock.release()

    def done(self) -> bool:
        """Whether the reply is here. gloo cannot be asked, so the first call sends a thread to wait for it."""
        if self.settled:
            return True
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, daemon=True)
            self._watcher.start()
        return False

    def _watch(self) -> None:
        try:
            self.result(FOREVER_S)
        except ReplayError:
            return  # kept for whoever asks for the result

    def _received(self, timeout_s: float) -> Message:
        if self._exchange is None:
            raise ClosedError("request must be in flight")
        reply = self._channel.receive(self._request, self._exchange, timeout_s)
        if Conversation.is_forgotten(reply):
            again = self._channel.resend(self._request)
            reply = self._channel.receive(self._request, again, timeout_s)
        return reply
