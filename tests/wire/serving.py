"""An actor that serves whatever it is told to, so that many tests share the start of one process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import ray

from replay_service.service.actor import ReplayActor
from replay_service.service.dispatch import Dispatch
from replay_service.wire.ray_objects import readable

__all__ = ["Changing", "changing_actor"]


class Changing:
    """Serves frames with a dispatch, or a whole service, that can be exchanged for a fresh one."""

    def __init__(self, name: str, namespace: str) -> None:
        self._name = name
        self._namespace = namespace
        self._dispatch: Any = None
        self._actor: Any = None

    def become(self, recipe: Callable[[], Dispatch]) -> None:
        """Serves a new dispatch from now on."""
        self._dispatch = recipe()

    def host(self, recipe: Callable[[], Any], transport: str = "ray", allow_callables: bool = False) -> None:
        """Hosts a new buffer from now on, as a service does."""
        self._actor = ReplayActor(recipe, self._name, self._namespace, transport, 1, allow_callables)

    def serve(self, frame: Any, objects: Any = None) -> Any:
        if self._actor is not None:
            return self._actor.serve(frame, objects)
        reply, extra = self._dispatch.serve(readable(frame), objects)
        return reply if extra is None else (reply, extra)

    def describe(self) -> dict[str, Any]:
        described: dict[str, Any] = self._actor.describe()
        return described

    def open_channel(self) -> dict[str, Any]:
        opened: dict[str, Any] = self._actor.open_channel()
        return opened

    def channel_put(self, number: int, key: str, value: bytes) -> None:
        self._actor.channel_put(number, key, value)

    def channel_look(self, number: int, key: str) -> bytes | None:
        found: bytes | None = self._actor.channel_look(number, key)
        return found

    def open_client(self, client_id: str, host: str, pid: int) -> None:
        self._actor.open_client(client_id, host, pid)

    def close_client(self, client_id: str) -> None:
        self._actor.close_client(client_id)

    def administer(self, verb: str, *arguments: Any, **settings: Any) -> Any:
        return self._actor.administer(verb, *arguments, **settings)

    def pid(self) -> int:
        """The process, to be stopped or killed by a test."""
        return os.getpid()


def changing_actor(name: str, namespace: str) -> Any:
    """Starts one."""
    actor: Any = ray.remote(Changing).options(name=name, namespace=namespace, num_cpus=0)
    return actor.remote(name, namespace)
