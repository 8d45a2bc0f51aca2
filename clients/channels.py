"""The channels of one handle in one process: over Ray always, over tensors where the operation allows."""

from __future__ import annotations

import os
import threading
import time
import uuid
import weakref
from typing import Any

from clients.introductions import Introduction, RayIntroduction
from clients.relay import RelayedIntroduction, relay_to
from replay_service.errors import (
    ClosedError,
    ReplayTimeoutError,
    ServiceUnavailableError,
    TransportUnavailableError,
)
from replay_service.records import ServiceAddress
from replay_service.wire.channel import Channel, Pending
from replay_service.wire.message import Message
from replay_service.wire.negotiate import DISTRIBUTED, RAY, Offer, Route, Support, negotiate
from replay_service.wire.ray_objects import RayChannel, parents_ray
from replay_service.wire.rendezvous import (
    CLIENT_RANK,
    CROWDED,
    SERVICE_RANK,
    YES,
    RemoteStore,
    make_group,
    payload_path,
)
from replay_service.wire.tensor_group import TensorChannel, show_token
from replay_service.wire.tensor_link import Link
from replay_service.wire.verbs import Verb

__all__ = ["Channels"]

OPEN_TIMEOUT_S = 15.0
RENEW_EVERY_S = 60.0
INHERITED: list[Any] = []
"""What a fork has from its parent and cannot use."""


class Channels:
    """Joins the service at the first call, and picks a route for every kind of operation.

    Args:
        address: where the service lives.
        fixed: a channel that carries everything, instead.
    """

    def __init__(self, address: ServiceAddress, fixed: Channel | None = None) -> None:
        self._address = address
        self._fixed = fixed
        self._id = uuid.uuid4().hex
        self._process = os.getpid()
        self._introduction: Introduction = RayIntroduction(address.name, address.namespace)
        self._renew_at_s = 0.0
        self._ray: RayChannel | None = None
        self._tensors: TensorChannel | None = None
        self._support = Support()
        self._columnar = True
        self._obstacles: dict[Verb, str] = {}
        self._routes: dict[Verb, Route] = {}
        self._lock = threading.Lock()
        self._closed = False
        LIVE.add(self)

    def call(self, request: Message, timeout_s: float) -> Message:
        """Sends a request the way it can go, and waits for the reply."""
        channel = self._channel_for(request, timeout_s)
        try:
            return channel.call(request, timeout_s)
        except TransportUnavailableError as error:
            return self._channel_after(request, channel, error, timeout_s).call(request, timeout_s)
        except ServiceUnavailableError:
            self._leave(channel)
            raise

    def submit(self, request: Message, timeout_s: float) -> Pending:
        """Sends a request the way it can go."""
        channel = self._channel_for(request, timeout_s)
        try:
            return channel.submit(request, timeout_s)
        except ServiceUnavailableError:
            self._leave(channel)
            raise

    def transforms(self, timeout_s: float) -> Any:
        """What the service leaves to its clients to run on records; None for nothing."""
        if self._fixed is not None:
            return None
        return self._introduced().transforms(timeout_s)

    def routes(self) -> dict[str, Route]:
        """The route of every verb that was used, by its name."""
        return {verb.name.lower(): route for verb, route in self._routes.items()}

    def close(self) -> None:
        """Frees the channels; the service goes on. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._process != os.getpid():
                return  # a fork's copy: the channels are its parent's
            for channel in (self._fixed, self._tensors, self._ray):
                if channel is not None:
                    channel.close()
            self._introduction.tell_no_more_of(self._id)

    def leave_behind(self) -> None:
        """Begins anew in a process that was just forked; the conversations of its parent are neither touched nor let go of.

        gloo ends the process that frees a pair whose threads have stayed behind.
        """
        if self._fixed is not None:
            return
        if self._tensors is not None:
            self._tensors.leave_behind()
        INHERITED.append((self._ray, self._tensors, self._introduction))
        self._process, self._ray, self._tensors, self._lock = os.getpid(), None, None, threading.Lock()
        self._introduction = RayIntroduction(self._address.name, self._address.namespace)
        self._id = uuid.uuid4().hex

    def _channel_for(self, request: Message, timeout_s: float) -> Channel:
        if self._closed:
            raise ClosedError("handle must be open; it was closed")
        if self._fixed is not None:
            return self._fixed
        over_ray = self._joined(timeout_s)
        obstacle = "" if request.objects is None else request.obstacle or "data"
        offer = Offer(self._address.transport, obstacle, self._obstacles.get(request.verb, ""))
        try:
            route = negotiate(offer, self._support)
        except TransportUnavailableError:
            if request.refusal is not None and self._columnar:
                raise request.refusal from None  # no other transport would make it fit
            raise
        self._routes[request.verb] = route
        return self._tensor_channel(timeout_s) if route.kind == DISTRIBUTED else over_ray

    def _channel_after(
        self, request: Message, channel: Channel, error: TransportUnavailableError, timeout_s: float
    ) -> Channel:
        """The channel for a reply that turned out to be no dense tensor."""
        if channel.kind != DISTRIBUTED or self._address.transport == DISTRIBUTED:
            raise TransportUnavailableError(f"{error}; use transport='auto' or 'ray'") from error
        self._obstacles[request.verb] = "the reply"
        return self._joined(timeout_s)

    def _leave(self, channel: Channel) -> None:
        """Forgets a service that is gone: the next call looks its name up again, which may be that of a new one."""
        if channel is not self._fixed:
            self._ray = None

    def _joined(self, timeout_s: float) -> RayChannel:
        channel = self._ray
        if channel is None:
            with self._lock:
                channel = self._ray or self._join(timeout_s)
        elif time.monotonic() > self._renew_at_s:
            self._say_hello()
        return channel

    def _join(self, timeout_s: float) -> RayChannel:
        known = self._introduced().describe(timeout_s)
        if not known["columnar"] and self._address.transport == known["transport"] == "auto":
            # Whether a sample is dense shows only when it is drawn, and none must be drawn twice to find out.
            self._obstacles.setdefault(Verb.SAMPLE, "a sample of a storage without columns")
        self._columnar = known["columnar"]
        self._support = Support(known["transport"], tuple(known["backends"]))
        self._say_hello()
        self._ray = RayChannel(self._introduction.actor, self._address.name)
        return self._ray

    def _introduced(self) -> Introduction:
        """Who asks for us: a relay in a process that lost its Ray by being forked, as long as there is something that goes without Ray."""
        lost = parents_ray()
        if lost and self._address.transport != RAY and not isinstance(self._introduction, RelayedIntroduction):
            self._introduction = RelayedIntroduction(relay_to(lost), self._address.name, self._address.namespace)
        return self._introduction

    def _say_hello(self) -> None:
        """Lets the service count this handle; from time to time, since handles end without a word, too."""
        self._renew_at_s = time.monotonic() + RENEW_EVERY_S
        self._introduction.tell_of(self._id)

    def _tensor_channel(self, timeout_s: float) -> TensorChannel:
        channel = self._tensors
        if channel is None or channel.broken:
            with self._lock:
                channel = self._tensors
                if channel is None or channel.broken:
                    if channel is not None:
                        channel.close()
                    channel = self._tensors = self._open(min(OPEN_TIMEOUT_S, timeout_s))
        return channel

    def _open(self, timeout_s: float) -> TensorChannel:
        """A new pair with the service; its coordinates and its token travel over Ray."""
        asks, name = self._introduction, self._address.name
        try:
            number, token = asks.open_channel(self._address.backend, timeout_s)
            store = RemoteStore(
                lambda key, value: asks.put(number, key, value, timeout_s),
                lambda key: asks.look(number, key, timeout_s),
                timeout_s,
            )
            crowded = asks.look(number, CROWDED, timeout_s) == YES
            group = make_group(store, CLIENT_RANK, asks.node_address(), timeout_s, crowded=crowded)
            link = Link(group, SERVICE_RANK, payload_path(store, CLIENT_RANK, self._address.backend, timeout_s))
        except ServiceUnavailableError:
            self._ray = None
            raise
        try:
            show_token(link, token, timeout_s)
        except ReplayTimeoutError as error:
            raise ServiceUnavailableError(f"{name} must answer on its tensor channel; {error}") from error
        return TensorChannel(link, name)


LIVE: weakref.WeakSet[Channels] = weakref.WeakSet()
"""All of this process, so that a fork can leave its parent's behind."""


def _forked() -> None:
    for channels in list(LIVE):
        channels.leave_behind()


os.register_at_fork(after_in_child=_forked)
