"""The whole table of calls on a buffer in an actor: over Ray objects, and over whatever each call can take."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import ray

from clients import ReplayClient, connect
from tests.contracts.handle import HandleContract
from tests.contracts.handle_recipes import Recipe
from tests.wire.serving import changing_actor

TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def service(ray_session: Any) -> Iterator[tuple[str, str, Any]]:
    """Name, namespace and actor of a service whose buffer can be exchanged."""
    name = f"hosted-{uuid.uuid4().hex}"
    actor = changing_actor(name, ray_session.namespace)
    yield name, ray_session.namespace, actor
    ray.kill(actor)


class HostedContract(HandleContract):
    transport: str

    @pytest.fixture(autouse=True)
    def _service(self, service: tuple[str, str, Any]) -> None:
        self.name, self.namespace, self.actor = service

    @contextmanager
    def hosted(self, recipe: Recipe) -> Iterator[ReplayClient]:
        ray.get(self.actor.host.remote(recipe, self.transport), timeout=TIMEOUT_S)
        with connect(self.name, namespace=self.namespace, timeout=TIMEOUT_S) as client:
            yield client


class TestRay(HostedContract):
    transport = "ray"


class TestAuto(HostedContract):
    transport = "auto"
