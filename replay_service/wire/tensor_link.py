"""One end of an open pair: frames out, frames in, with deadlines; the errors of gloo end here.

A frame that fits what the receiver has posted travels as one message. Of a larger one the header goes ahead; its receiver makes room,
and the whole frame follows under a tag of its own. Tags keep the replies of several requests in flight apart.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from replay_service.errors import ReplayError, ReplayTimeoutError, ServiceUnavailableError
from replay_service.wire.packing import HEADER_BYTES, Frame, ProtocolError, Take, read_header
from replay_service.wire.tensor_payload import PayloadPath

__all__ = ["REQUEST_TAG", "Link", "Receiving", "Sending", "reply_tag"]

REQUEST_TAG = 0
FIRST_REPLY_TAG = 16
TAGS = 1 << 20
LARGEST_PAYLOAD_BYTES = 1 << 34
SHORTEST_WAIT_S = 0.001


def reply_tag(request_id: int) -> int:
    """The tag of the reply to a request; the next tag is that of a reply that did not fit."""
    return FIRST_REPLY_TAG + 2 * (request_id % TAGS)


def _plain(error: Exception) -> str:
    """gloo's message without the place in its source and without its advice."""
    text = str(error).partition("\n")[0].partition(". This is typically")[0]
    return text.rpartition("] ")[2] if text.startswith("[/") and "]:" not in text else text.partition("] ")[2] or text


class Receiving:
    """A frame that was asked for: memory is posted, the other end may send."""

    def __init__(self, link: Link, buffer: Frame, tag: int) -> None:
        self._link = link
        self.buffer = buffer
        self._tag = tag
        self._work = link.post(buffer, tag)

    def frame(self, timeout_s: float, take: Take, largest_bytes: int) -> Frame:
        """The frame, once it is here.

        Raises:
            ReplayTimeoutError: not here within `timeout_s`; the link is closed by that.
            ServiceUnavailableError: the other end is gone.
            ProtocolError: what came is no frame, or a larger one than `largest_bytes`.
        """
        self._link.finish(self._work, timeout_s)
        header = read_header(self.buffer)
        size = header.frame_bytes
        if size <= self.buffer.size:
            return self.buffer[:size]
        if size > largest_bytes:
            raise self._link.protocol_error(f"message ({size} bytes) must be at most {largest_bytes} bytes")
        whole = take(size)
        self._link.finish(self._link.post(whole, self._tag + 1), timeout_s)
        return whole


class Sending:
    """A frame on its way out, in one or two parts."""

    def __init__(self, link: Link, parts: list[tuple[Frame, Any]]) -> None:
        self._link = link
        self._parts = parts
        self.payload: tuple[Tensor, Any] | None = None

    def finish(self, timeout_s: float) -> None:
        """Waits until the other end has taken all of it.

        Raises:
            ReplayTimeoutError: not within `timeout_s`; the link is closed by that.
            ServiceUnavailableError: the other end is gone.
        """
        for _, work in self._parts:
            self._link.finish(work, timeout_s)
        self._parts = []
        if self.payload is not None and self._link.payload is not None:
            self._link.payload.finish(self.payload[1], timeout_s)
            self.payload = None


class Link:
    """Sends and receives frames over a group of two.

    Args:
        group: the group.
        peer: the rank of the other end.
        payload: the way of payloads that travel apart; None sends them within their frames.
    """

    def __init__(self, group: Any, peer: int, payload: PayloadPath | None = None) -> None:
        self.payload = payload
        self._group = group
        self._peer = peer
        self._sending = threading.Lock()
        self.broken = False

    def receive(self, buffer: Frame, tag: int) -> Receiving:
        """Posts `buffer` for the next frame under `tag`."""
        return Receiving(self, buffer, tag)

    def send(self, frame: Frame, tag: int, capacity: int, timeout_s: float, flat: Tensor | None = None) -> None:
        """Sends a frame to a receiver that has posted `capacity` bytes under `tag`, and waits until it is taken."""
        self.start(frame, tag, capacity, flat).finish(timeout_s)

    def start(self, frame: Frame, tag: int, capacity: int, flat: Tensor | None = None) -> Sending:
        """Sends a frame without waiting: gloo holds it back until the receiver asks for it.

        What is returned has to be kept until `finish`: it keeps the frame's memory.
        """
        parts = [(frame, tag)] if frame.size <= capacity else [(frame[:HEADER_BYTES], tag), (frame, tag + 1)]
        with self._sending:
            sending = Sending(self, [(part, self._push(part, under)) for part, under in parts])
            if flat is not None and self.payload is not None:
                sending.payload = (flat, self.payload.start(flat))
            return sending

    def post(self, buffer: Frame, tag: int) -> Any:
        """Asks the group for bytes under `tag`."""
        try:
            return self._group.recv([torch.from_numpy(buffer)], self._peer, tag)
        except RuntimeError as error:
            raise self._translated(error, 0) from error

    def finish(self, work: Any, timeout_s: float) -> None:
        """Waits for what was asked for."""
        try:
            # Less than a millisecond would be rounded to "for ever".
            work.wait(timedelta(seconds=max(timeout_s, SHORTEST_WAIT_S)))
        except RuntimeError as error:
            raise self._translated(error, timeout_s) from error

    def payload_of(self, frame: Frame, timeout_s: float) -> Tensor | None:
        """The payload that travels apart from `frame`, or None if it lies within."""
        header = read_header(frame)
        if not header.apart:
            return None
        if self.payload is None:
            raise self.protocol_error("payload must travel within its frame: this end has no other way")
        if header.payload_bytes > LARGEST_PAYLOAD_BYTES:
            raise self.protocol_error(
                f"payload ({header.payload_bytes} bytes) must be at most {LARGEST_PAYLOAD_BYTES} bytes"
            )
        try:
            return self.payload.receive(header.payload_bytes, timeout_s)
        except ReplayError:
            self.broken = True
            raise

    def protocol_error(self, text: str) -> Exception:
        """The error of a peer that does not keep to the protocol; the link is of no use after it."""
        self.broken = True
        return ProtocolError(text)

    def close(self) -> None:
        """Lets go of the group; what is in flight fails on both ends."""
        self.broken = True
        group, self._group = self._group, None
        if group is not None:
            group.abort()
        if self.payload is not None:
            self.payload.close()

    def _push(self, frame: Frame, tag: int) -> Any:
        try:
            return self._group.send([torch.from_numpy(frame)], self._peer, tag)
        except (RuntimeError, AttributeError) as error:
            raise self._translated(error, 0) from error

    def _translated(self, error: Exception, timeout_s: float) -> Exception:
        """gloo's error as one of ours; gloo closes the pair after any of them."""
        self.broken = True
        text = _plain(error)
        if "Timed out" in text or "timed out" in text:
            return ReplayTimeoutError(f"timeout ({timeout_s} s) must cover the call; the other end has not answered")
        return ServiceUnavailableError(f"the other end must be alive and reachable; {text}")
