"""An actor that serves whatever it is told to, so that many tests share the start of one process."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable
from typing import Any, Protocol

import ray
from ray.exceptions import RayError

from replay_service.records import ServiceAddress
from replay_service.service.actor import ReplayActor
from replay_service.service.dispatch import Dispatch
from replay_service.service.episodic_owner import RayEpisodicBuffer
from replay_service.service.owner import RayReplayBuffer

__all__ = ["Changing", "Host", "House", "changing_actor"]

TIMEOUT_S = 60.0


class Changing(ReplayActor):
    """A service whose dispatch, or all of it, can be exchanged for a fresh one."""

    def __init__(self, name: str, namespace: str) -> None:
        self._place = (name, namespace)

    def become(self, recipe: Callable[[], Dispatch]) -> None:
        """Serves frames with a new dispatch from now on."""
        self._dispatch = recipe()

    def host(self, recipe: Callable[[], Any], transport: str = "ray", allow_callables: bool = False) -> None:
        """Hosts a new buffer from now on."""
        name, namespace = self._place
        ReplayActor.__init__(self, recipe, ServiceAddress(name, namespace, transport=transport), 1, allow_callables)

    def pid(self) -> int:
        """The process, to be stopped or killed by a test."""
        return os.getpid()


def changing_actor(name: str, namespace: str) -> Any:
    """Starts one."""
    actor: Any = ray.remote(Changing).options(name=name, namespace=namespace, num_cpus=0)
    return actor.remote(name, namespace)


class Host(Protocol):
    """`host(recipe, transport, allow_callables)`: the owner of a new buffer, which lives until the next is asked for."""

    def __call__(self, recipe: Callable[[], Any], transport: str = "auto", *, allow_callables: bool = False) -> Any: ...


class House:
    """One actor of a test session, in which buffers live one after the other. Owners and handles are the real ones; only the
    process is not started anew, which takes seconds: a test that ends its service starts one of its own."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._name = ""
        self._actor: Any = None

    @property
    def name(self) -> str:
        """The service's name; another one if its process had died."""
        self.actor  # noqa: B018
        return self._name

    @property
    def namespace(self) -> str:
        """The service's namespace."""
        return self._namespace

    @property
    def actor(self) -> Any:
        """The actor, started when it is first asked for, and again if it has died."""
        if self._actor is not None:
            with contextlib.suppress(RayError):
                ray.get(self._actor.pid.remote(), timeout=TIMEOUT_S)
                return self._actor
        self._name = f"house-{uuid.uuid4().hex}"
        self._actor = changing_actor(self._name, self._namespace)
        return self._actor

    def host(self, recipe: Callable[[], Any], transport: str = "auto", *, allow_callables: bool = False) -> Any:
        """The owner of a new buffer of records."""
        return self._adopted(RayReplayBuffer, recipe, transport, allow_callables)

    def host_steps(self, recipe: Callable[[], Any], transport: str = "auto", *, allow_callables: bool = False) -> Any:
        """The owner of a new episodic buffer."""
        return self._adopted(RayEpisodicBuffer, recipe, transport, allow_callables)

    def close(self) -> None:
        """Ends the process."""
        if self._actor is not None:
            ray.kill(self._actor)

    def _adopted(self, kind: Any, recipe: Callable[[], Any], transport: str, allow_callables: bool) -> Any:
        ray.get(self.actor.host.remote(recipe, transport, allow_callables), timeout=TIMEOUT_S)
        owner = kind.__new__(kind)
        owner.adopt(self._name, self._namespace)
        return owner
