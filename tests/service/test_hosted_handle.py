"""The whole table of calls on a buffer in an actor: over Ray objects, and over whatever each call can take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import ray

from clients import ReplayClient, connect
from tests.contracts.handle import HandleContract
from tests.contracts.handle_recipes import Recipe, records
from tests.wire.serving import House

TIMEOUT_S = 30.0


class HostedContract(HandleContract):
    transport: str

    @pytest.fixture(autouse=True)
    def _house(self, guest_house: House) -> None:
        self.house, self.actor = guest_house, guest_house.actor

    @contextmanager
    def hosted(self, recipe: Recipe) -> Iterator[ReplayClient]:
        ray.get(self.actor.host.remote(recipe, self.transport), timeout=TIMEOUT_S)
        with connect(self.house.name, namespace=self.house.namespace, timeout=TIMEOUT_S) as client:
            yield client


class TestRay(HostedContract):
    transport = "ray"


class TestAuto(HostedContract):
    transport = "auto"

    def test_tensors_take_the_channel_and_the_rest_takes_ray(self) -> None:
        with self.hosted(records) as client:
            client.extend(["a string", "another"])
            assert set(client.sample()) <= {"a string", "another"}
            routes = {verb: meter["route"] for verb, meter in client.stats()["service"]["verbs"].items()}
            assert routes["extend"] == "ray"
            assert client.stats()["service"]["verbs"]["stats"]["route"] == "distributed"
