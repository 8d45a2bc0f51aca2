"""What every handle on a hosted buffer has: an address, channels, counts, and an end."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from clients.channels import Channels
from clients.futures import Future
from clients.saving import Saving
from replay_service.arguments import positive_seconds
from replay_service.records import ServiceAddress
from replay_service.wire.channel import Channel
from replay_service.wire.message import Message, text_of
from replay_service.wire.verbs import Verb

__all__ = ["Conversing"]

Handle = TypeVar("Handle", bound="Conversing")
Value = TypeVar("Value")


class Conversing(Saving):
    """Base of the handles: whatever is asked goes as one message through a channel of this process's own.

    Args:
        address: where the service lives, as `owner.address` gives it.
        channel: what carries the messages; None joins the service over Ray at the first call.
    """

    owners_only: ClassVar[tuple[str, ...]] = ("shutdown", "start", "client", "clients")
    """Calls that only an owner has."""

    def __init__(self, address: ServiceAddress, channel: Channel | None = None) -> None:
        self._address = address
        self._channels = Channels(address, channel)
        self._closed = False

    # -- counts -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._call(Message(Verb.LENGTH), None).argument(0)

    @property
    def write_count(self) -> int:
        """Records written so far, overwritten ones included (asks the service)."""
        return self._call(Message(Verb.WRITE_COUNT), None).argument(0)

    def stats(self, timeout: float | None = None) -> dict[str, Any]:
        """A snapshot: what a local buffer's `stats` says, and `service`: uptime, memory, clients, counts per verb."""
        snapshot: dict[str, Any] = json.loads(text_of(self._call(Message(Verb.STATS), timeout)))
        routes = self._channels.routes()
        for verb, meter in snapshot["service"]["verbs"].items():
            route = routes.get(verb)
            meter["why"] = "as its latest caller asked" if route is None else route.why
        return snapshot

    @property
    def address(self) -> ServiceAddress:
        """Where the service lives."""
        return self._address

    # -- life -------------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Frees this handle's channel; the service goes on. Idempotent."""
        self._closed = True
        self._channels.close()

    def __enter__(self: Handle) -> Handle:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name in type(self).owners_only:
            raise AttributeError(f"{name} is the owner's: a handle can use the service, not start, change or stop it")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address.name!r} in {self._address.namespace!r})"

    # -- inner ------------------------------------------------------------------------------------------------------

    def _call(self, request: Message, timeout: float | None) -> Message:
        return self._channels.call(request, self._timeout_of(timeout))

    def _submit(self, request: Message, decode: Callable[[Message], Value]) -> Future[Value]:
        pending = self._channels.submit(request, self._address.timeout_s)
        return Future(pending, decode, self._address.timeout_s)

    def _timeout_of(self, timeout: float | None) -> float:
        return positive_seconds(timeout, self._address.timeout_s)
