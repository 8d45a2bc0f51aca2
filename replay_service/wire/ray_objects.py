"""The channel over Ray: every message is one flat buffer, an argument or a return value of an actor call.

A small one travels as `bytes`, which Ray inlines in the call as they are; a large one as a NumPy array, which Ray moves out of band
through its object store. No tensor is pickled.
What a caller gets is copied once out of Ray's read-only memory into a recycled buffer: contiguous, writable and its own.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from typing import Any

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from replay_service.arena import Arena
from replay_service.errors import ClosedError, ReplayError, ReplayTimeoutError, ServiceUnavailableError
from replay_service.wire.channel import InFlight
from replay_service.wire.conversation import Conversation, checked
from replay_service.wire.message import Message
from replay_service.wire.packing import Frame

__all__ = ["RayChannel", "cause_of", "node_address", "owns_ray", "parents_ray", "readable", "require_ray", "sendable"]

DEFAULT_IN_FLIGHT = 16

SMALL_BYTES = 64 * 1024
"""Up to here a frame travels as bytes: one copy more, but none of the 0.3 ms that Ray takes to wrap and unwrap an array."""

LARGE_BYTES = 4 * 1024 * 1024
"""From here on two threads copy a frame: the pages of Ray's memory are mapped as they are read, which costs as much as the copy."""


_own = {"ray": True}
"""Whether what this process knows of Ray is its own, and not a copy of what the process it was forked from had joined."""

_parents = {"address": ""}
"""Where the Ray is that a process forked now would lose: what tells it is itself lost in the fork."""


def _about_to_fork() -> None:
    if owns_ray():
        with contextlib.suppress(Exception):  # whatever hinders it, the fork is not to fail for it
            _parents["address"] = str(ray.get_runtime_context().gcs_address)


def _forked() -> None:
    _own["ray"] = not ray.is_initialized()


os.register_at_fork(before=_about_to_fork, after_in_child=_forked)


def parents_ray() -> str:
    """The address of the Ray that this process lost by being forked from one that had joined it; empty if it lost none."""
    return "" if _own["ray"] else _parents["address"]


def owns_ray() -> bool:
    """Whether this process can use Ray: it has joined one, by itself. A fork has Ray's state but none of its threads; calls would hang."""
    return _own["ray"] and ray.is_initialized()


def require_ray(name: str) -> None:
    """Raises `ServiceUnavailableError` where `owns_ray` is false; Ray itself would hang there, or start another Ray, unasked."""
    if not _own["ray"]:
        raise ServiceUnavailableError(
            f"{name} must be reachable through a Ray of this process's own; it was forked from one that had joined Ray: "
            f"start it by 'spawn', or fork before joining (only dense tensors go on without)"
        )
    if not ray.is_initialized():
        raise ServiceUnavailableError(f"{name} must be reachable; this process has left its Ray")


class RayChannel:
    """Sends messages as calls of a Ray actor's method `serve(frame, objects)`.

    Args:
        actor: the actor's handle.
        name: how errors call the service.
        in_flight: how many requests may be unanswered.
    """

    kind = "ray"
    carries_objects = True

    def __init__(self, actor: Any, name: str, in_flight: int = DEFAULT_IN_FLIGHT) -> None:
        self._actor = actor
        self.name = name
        self._conversation = Conversation()
        self._in_flight = InFlight(in_flight)
        self._sending = Arena(max_buffers=4)
        self._receiving = Arena()
        self._closed = False
        # Ray keeps the order of calls of one thread; the lock keeps it among threads, so that layouts are announced before they are used.
        self._order = threading.Lock()

    def call(self, request: Message, timeout_s: float) -> Message:
        """Sends a request and waits for its reply."""
        return checked(self._send(request).result(timeout_s))

    def submit(self, request: Message, timeout_s: float) -> RayPending:
        """Sends a request; waits up to `timeout_s` for a place among those in flight."""
        self._in_flight.admit(timeout_s)
        pending = self._send(request)
        self._in_flight.add(pending)
        return pending

    def close(self) -> None:
        """Refuses further calls."""
        self._closed = True

    def resend(self, request: Message) -> Any:
        """Sends a request again with the text of its layout; the reference of the new call."""
        return self._remote(request, with_layout=True)

    def receive(self, request: Message, answer: Any) -> Message:
        """The reply in what the actor returned."""
        sent, objects = answer if isinstance(answer, tuple) else (answer, None)
        read_only = np.frombuffer(sent, np.uint8) if isinstance(sent, bytes) else sent
        frame = self._receiving.take(read_only.size)
        _copy(frame, read_only)
        reply = self._conversation.reply(request, frame)
        reply.objects = _owned(objects)
        return reply

    def translated(self, error: Exception, timeout_s: float) -> Exception:
        """Ray's error as one of ours."""
        if isinstance(error, GetTimeoutError):
            return ReplayTimeoutError(f"timeout ({timeout_s} s) must cover the call; {self.name} has not answered")
        if isinstance(error, RayTaskError):
            cause = error.cause if isinstance(error.cause, Exception) else error
            return ReplayError(f"{self.name} failed: {type(cause).__name__}: {cause}")
        return ServiceUnavailableError(f"{self.name} must be alive and reachable; {_first_line(error)}")

    def _send(self, request: Message) -> RayPending:
        if self._closed:
            raise ClosedError("handle must be open; it was closed")
        return RayPending(self, request, self._remote(request, with_layout=False))

    def _remote(self, request: Message, *, with_layout: bool) -> Any:
        with self._order:
            frame = self._conversation.request(request, self._sending.take, with_layout=with_layout)
            require_ray(self.name)
            try:
                if request.objects is None:
                    return self._actor.serve.remote(sendable(frame))
                return self._actor.serve.remote(sendable(frame), request.objects)
            except RayError as error:
                raise self.translated(error, 0) from error
            except (TypeError, pickle.PicklingError) as error:  # from Ray: what goes along cannot be pickled
                raise TypeError(
                    f"{request.obstacle or 'data'} must be something that pickle takes, to go over Ray as an object; {cause_of(error)}"
                ) from error


class RayPending:
    """An actor call on its way."""

    def __init__(self, channel: RayChannel, request: Message, reference: Any) -> None:
        self._channel = channel
        self._request = request
        self._reference = reference
        self._reply: Message | None = None
        self._error: Exception | None = None
        self._lock = threading.Lock()

    def result(self, timeout_s: float) -> Message:
        """The reply."""
        # Several threads may wait for one reply, each for as long as it likes.
        if not self._lock.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX)):
            raise self._channel.translated(GetTimeoutError(), timeout_s)
        try:
            if self._error is not None:
                raise self._error
            if self._reply is None:
                self._reply = self._received(timeout_s)
                self._reference = None
            return self._reply
        except ReplayTimeoutError:
            raise
        except ReplayError as error:
            self._error = error
            raise
        finally:
            self._lock.release()

    @property
    def settled(self) -> bool:
        """Whether the reply was received, or will never be."""
        return self._reply is not None or self._error is not None

    def done(self) -> bool:
        """Whether the reply is here."""
        reference = self._reference
        if reference is None or self.settled or not owns_ray():
            return True
        ready, _ = ray.wait([reference], timeout=0)
        return bool(ready)

    def _received(self, timeout_s: float) -> Message:
        reply = self._wait(timeout_s)
        if Conversation.is_forgotten(reply):
            self._reference = self._channel.resend(self._request)
            reply = self._wait(timeout_s)
        return reply

    def _wait(self, timeout_s: float) -> Message:
        require_ray(self._channel.name)
        try:
            answer = ray.get(self._reference, timeout=timeout_s)
        except (RayError, GetTimeoutError) as error:
            raise self._channel.translated(error, timeout_s) from error
        return self._channel.receive(self._request, answer)


def node_address() -> str:
    """This node's own address, as Ray knows it."""
    address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return address


def sendable(frame: Frame) -> Frame | bytes:
    """A frame in the form in which Ray carries it fastest."""
    return frame.tobytes() if frame.size <= SMALL_BYTES else frame


def readable(sent: Frame | bytes) -> Frame:
    """A received frame for a service that only reads it: the same memory, without the mark that makes torch warn of read-only tensors."""
    frame = np.frombuffer(sent, np.uint8) if isinstance(sent, bytes) else sent
    return frame if frame.flags.writeable else np.asarray(_Unmarked(frame))


class _Unmarked:
    """Offers a read-only array's memory as writable; whoever takes it must not write."""

    def __init__(self, array: Frame) -> None:
        self._array = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def _copy(target: Frame, source: Frame) -> None:
    """Copies a frame. A thread of its own for half of a large one costs a tenth of what it saves, and leaves nothing behind for a fork."""
    if source.size < LARGE_BYTES:
        np.copyto(target, source)
        return
    half = source.size // 2
    other = threading.Thread(target=np.copyto, args=(target[half:], source[half:]))
    other.start()
    np.copyto(target[:half], source[:half])
    other.join()


def _owned(objects: Any) -> Any:
    """Objects that the caller may write to: of arrays in Ray's read-only memory, copies."""
    if isinstance(objects, np.ndarray):
        return objects if objects.flags.writeable else objects.copy()
    if isinstance(objects, tuple) and hasattr(objects, "_fields"):
        return type(objects)(*map(_owned, objects))
    if isinstance(objects, list | tuple):
        return type(objects)(map(_owned, objects))
    if type(objects) is dict:
        return {name: _owned(value) for name, value in objects.items()}
    return objects


def cause_of(error: Exception) -> str:
    """What pickle said, without the long report that Ray puts before it."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    return _first_line(error)


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
