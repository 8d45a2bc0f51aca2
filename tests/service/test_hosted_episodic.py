"""The whole table of calls on an episodic buffer in an actor: over Ray objects, over whatever each call can take, and over tensors
alone; and its life."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import ray

from clients import connect
from clients.episodic_handle import EpisodicClient
from replay_service.episodic import PrioritizedVectorReplayBuffer, ReplayBuffer, VectorReplayBuffer
from replay_service.errors import ClosedError, LayoutError
from replay_service.service.episodic_owner import RayEpisodicBuffer
from tests.contracts.episodic_handle import EpisodicHandleContract, Recipe, vector
from tests.episodic.steps import rows
from tests.wire.serving import House

TIMEOUT_S = 30.0


class HostedContract(EpisodicHandleContract):
    transport: str

    @pytest.fixture(autouse=True)
    def _house(self, guest_house: House) -> None:
        self.house, self.actor = guest_house, guest_house.actor

    @contextmanager
    def hosted(self, recipe: Recipe) -> Iterator[EpisodicClient]:
        ray.get(self.actor.host.remote(recipe, self.transport), timeout=TIMEOUT_S)
        with connect(self.house.name, namespace=self.house.namespace, timeout=TIMEOUT_S) as client:
            yield client


class TestRay(HostedContract):
    transport = "ray"


class TestAuto(HostedContract):
    transport = "auto"

    def test_steps_take_the_tensor_channel_until_they_hold_words(self) -> None:
        with self.hosted(vector) as client:
            client.add(rows([1, 2]))
            client.sample(2)
            client.add(rows([1, 2], info={"word": np.array(["a", "b"], object)}))
            assert client.sample(0)[0].info.word.tolist() == [None, "a", None, "b"]
            assert len(client) == 4
            routes = {name: meter["route"] for name, meter in client.stats()["service"]["verbs"].items()}
            assert (routes["add_steps"], routes["sample_steps"], routes["length"]) == ("ray", "ray", "distributed")


class TestDistributed(HostedContract):
    transport = "distributed"
    carries_objects = False


@pytest.fixture(scope="module")
def owner(ray_session: Any) -> Iterator[RayEpisodicBuffer]:
    made: Any = PrioritizedVectorReplayBuffer(
        16,
        2,
        alpha=0.6,
        beta=0.4,
        service_backend="ray",
        service_backend_options={"remote_config": {"num_cpus": 0}, "name": f"owned-{uuid.uuid4().hex}"},
        transport_options={"timeout": TIMEOUT_S},
    )
    with made:
        yield made


def test_a_constructor_gives_the_owner_of_a_hosted_buffer(owner: RayEpisodicBuffer, tmp_path: Any) -> None:
    assert isinstance(owner, RayEpisodicBuffer)
    assert (owner.maxsize, owner.buffer_num, owner.stack_num, len(owner)) == (16, 2, 1, 0)
    slots = owner.add(rows([1, 2]))[0]
    owner.submit_add(rows([3, 4], [1, 0])).result(TIMEOUT_S)
    owner.update_weight(slots, [2.0, 3.0])
    batch, drawn = owner.sample(4, n_step=2, gamma=0.5)
    assert batch.n_step.rew.shape == drawn.shape == (4,)
    assert owner.get_weight(slots).shape == (2,)
    assert owner.next([0, 8]).tolist() == owner.prev([1, 9]).tolist()[::-1] == [1, 9] or owner.next(0) == 1
    assert owner.unfinished_index().tolist() == [9]
    assert owner.sample_indices(0).tolist() == [0, 1, 8, 9]
    assert owner.get(0, "obs") == 1
    assert owner.column("rew").shape == (16,)
    assert owner.episodic_return(gae_lambda=1.0)[0].shape == (4,)
    assert owner.stats()["size"] == owner.write_count == 4
    owner.set_array_at_key(np.array([1.0, np.nan]), "ret", index=[0, 8], default_value=0.0)
    assert owner.hasnull()
    owner.dropnull()
    assert owner[:].obs.tolist() == [1, 3, 4]
    owner.save_hdf5(tmp_path / "file.hdf5")
    loaded = PrioritizedVectorReplayBuffer.load_hdf5(tmp_path / "file.hdf5")
    assert loaded[:].obs.tolist() == [1, 3, 4]
    state = owner.state_dict()
    owner.end_episodes()
    owner.reset()
    owner.set_beta(1.0)
    assert len(owner) == 0
    assert owner
    owner.load_state_dict(state)
    assert owner[:] == loaded[:]
    with pytest.raises(LayoutError, match="state_dict"):
        owner.load_state_dict({})
    with owner.prefetch(3) as samples:
        assert next(samples)[1].shape == (3,)


def test_handles_use_it_and_cannot_stop_it(owner: RayEpisodicBuffer) -> None:
    with owner.client() as client, pickle.loads(pickle.dumps(owner)) as copy:
        client.reset()
        client.add(rows([5, 6]))
        assert copy[:].obs.tolist() == [5, 6]
        assert type(copy) is EpisodicClient
        assert not hasattr(copy, "shutdown")
        found = connect(owner.address.name, namespace=owner.address.namespace)
        assert (found.maxsize, found.buffer_num) == (16, 2)
        found.close()


def test_its_owner_saves_and_loads_it_too(owner: RayEpisodicBuffer, tmp_path: Any) -> None:
    owner.reset()
    owner.add(rows([5, 6]))
    assert owner.save(tmp_path / "c").path == str(tmp_path / "c")
    owner.reset()
    owner.load(tmp_path / "c")
    assert owner[:].obs.tolist() == [5, 6]


def test_a_wrong_setting_is_told_before_anything_starts(ray_session: Any) -> None:
    with pytest.raises(ValueError, match="size"):
        ReplayBuffer(-1, service_backend="ray")
    with pytest.raises(ValueError, match="service_backend"):
        ReplayBuffer(1, service_backend="elsewhere")
    with pytest.raises(TypeError, match="nonsense"):
        ReplayBuffer(1, nonsense=2)
    local = VectorReplayBuffer(4, 2, service_backend="direct", transport="auto")
    assert local.client() is local
    assert local.is_alive()


def test_an_owner_that_was_shut_down_refuses_calls(owner: RayEpisodicBuffer) -> None:
    handle = owner.client()
    assert len(handle) == len(owner)
    owner.shutdown()
    owner.shutdown()
    for call in (lambda: owner.sample(1), owner.state_dict, owner.client):
        with pytest.raises(ClosedError):
            call()
    with pytest.raises(ConnectionError):
        handle.sample(1, timeout=5.0)
