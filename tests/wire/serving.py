"""An actor that serves whatever it is told to, so that many tests share the start of one process."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import ray

from replay_service.records import ServiceAddress
from replay_service.service.actor import ReplayActor
from replay_service.service.dispatch import Dispatch

__all__ = ["Changing", "changing_actor"]


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
