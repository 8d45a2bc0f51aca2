"""What a handle asks its service before it can speak to it: who it is, and the coordinates of a new pair."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Protocol

import ray
from ray.exceptions import GetTimeoutError, RayError

from clients.joining import find_service
from replay_service.errors import ReplayTimeoutError, ServiceUnavailableError
from replay_service.wire.ray_objects import node_address, owns_ray, require_ray

__all__ = ["Introduction", "RayIntroduction"]


class Introduction(Protocol):
    """One service, by name. Every wait is at most `timeout_s`.

    All but `tell_of` and `tell_no_more_of` raise `ReplayTimeoutError` for a service that does not answer in time, and
    `ServiceUnavailableError` for one that is not there.
    """

    @property
    def actor(self) -> Any:
        """The service's actor; None where this process cannot call it."""

    def describe(self, timeout_s: float) -> dict[str, Any]:
        """Finds the service, and asks what it says of itself; anew each time, since the name may be that of a new one."""

    def transforms(self, timeout_s: float) -> Any:
        """The transforms that the service leaves to its clients; None for none."""

    def node_address(self) -> str:
        """This node's own address, as Ray knows it."""

    def open_channel(self, backend: str, timeout_s: float) -> tuple[int, bytes]:
        """The number and the token of a new pair."""

    def put(self, number: int, key: str, value: bytes, timeout_s: float) -> None:
        """Publishes a coordinate of this end of the pair `number`."""

    def look(self, number: int, key: str, timeout_s: float) -> bytes | None:
        """A coordinate of the service's end, or None if it is not there yet."""

    def tell_of(self, client_id: str) -> None:
        """Lets the service count a handle; does not wait."""

    def tell_no_more_of(self, client_id: str) -> None:
        """Lets the service count it no more."""


class RayIntroduction:
    """Asks over the Ray that this process has joined."""

    def __init__(self, name: str, namespace: str) -> None:
        self._name = name
        self._namespace = namespace
        self.actor: Any = None

    def describe(self, timeout_s: float) -> dict[str, Any]:
        """As `find_service`."""
        self.actor, known = find_service(self._name, self._namespace, timeout_s)
        return known

    def transforms(self, timeout_s: float) -> Any:
        """As the service describes itself."""
        return self.describe(timeout_s)["transforms"]

    def node_address(self) -> str:
        """As Ray says."""
        return node_address()

    def open_channel(self, backend: str, timeout_s: float) -> tuple[int, bytes]:
        """One call of the actor, as all that follow."""
        with self._asking(timeout_s) as actor:
            opening = ray.get(actor.open_channel.remote(backend), timeout=timeout_s)
        return opening["number"], opening["token"]

    def put(self, number: int, key: str, value: bytes, timeout_s: float) -> None:
        """Publishes a coordinate."""
        with self._asking(timeout_s) as actor:
            ray.get(actor.channel_put.remote(number, key, value), timeout=timeout_s)

    def look(self, number: int, key: str, timeout_s: float) -> bytes | None:
        """A coordinate, if it is there."""
        with self._asking(timeout_s) as actor:
            value: bytes | None = ray.get(actor.channel_look.remote(number, key), timeout=timeout_s)
        return value

    def tell_of(self, client_id: str, process: int | None = None) -> None:
        """Says so for `process`; None for this one."""
        if owns_ray():
            with contextlib.suppress(RayError):  # a service that is gone shows in the call itself
                self.actor.open_client.remote(client_id, node_address(), process or os.getpid())

    def tell_no_more_of(self, client_id: str, wait_s: float = 0.0) -> None:
        """Says so, if there is still a Ray to say it over; waits up to `wait_s` until the service has heard it."""
        if self.actor is not None and owns_ray():
            with contextlib.suppress(RayError):
                heard = self.actor.close_client.remote(client_id)
                if wait_s > 0:
                    ray.get(heard, timeout=wait_s)

    @contextlib.contextmanager
    def _asking(self, timeout_s: float) -> Iterator[Any]:
        """The actor; Ray's errors about it become ours."""
        require_ray(self._name)
        try:
            yield self.actor
        except GetTimeoutError as error:
            raise ReplayTimeoutError(
                f"timeout ({timeout_s} s) must cover the call; {self._name} has not answered"
            ) from error
        except RayError as error:
            raise ServiceUnavailableError(
                f"{self._name} must be alive and reachable; {str(error).partition(chr(10))[0]}"
            ) from error
