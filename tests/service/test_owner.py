"""The owner: starting, handing out handles, ending; in real actors."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import uuid
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from clients import ReplayClient, connect
from replay_service import LazyTensorStorage, ListStorage, RandomSampler, ReplayBuffer, TensorDictReplayBuffer
from replay_service.errors import ClosedError, ReplayTimeoutError, ServiceUnavailableError
from replay_service.service.owner import RayReplayBuffer, attach
from tests.conftest import RaySession
from tests.rows import assert_rows_are_whole, stamped_rows

CAPACITY = 100
Start = Callable[..., Any]


@pytest.fixture(scope="module")
def start(ray_session: RaySession) -> Iterator[Start]:
    """Starts services; those that a test leaves running are stopped."""
    started = []

    def begin(**settings: Any) -> Any:
        options = {"remote_config": {"num_cpus": 0}, "timeout": 30.0, **settings.pop("options", {})}
        owner = TensorDictReplayBuffer(
            **{"storage": partial(LazyTensorStorage, CAPACITY), "batch_size": 8, "transport": "ray", **settings},
            service_backend="ray",
            service_backend_options=options,
        )
        started.append(owner)
        return owner

    yield begin
    for owner in started:
        owner.shutdown()


@pytest.fixture(scope="module")
def house(start: Start) -> Any:
    return start()


@pytest.fixture
def owner(house: Any) -> Any:
    """An empty service that tests share, for those that do not end it."""
    house.empty()
    return house


def unique() -> str:
    return f"owner-{uuid.uuid4().hex}"


def test_the_first_snippet_of_the_documentation(ray_session: RaySession) -> None:
    for transport, options in (("ray", {}), ("distributed", {"backend": "gloo"})):
        buffer = ReplayBuffer(
            storage=partial(LazyTensorStorage, 1000),
            service_backend="ray",
            service_backend_options={"remote_config": {"num_cpus": 1}},
            transport=transport,
            transport_options=options,
        )
        worker_buffer = buffer.client()
        assert worker_buffer.extend(torch.arange(8)).tolist() == list(range(8))
        assert set(worker_buffer.sample(4).tolist()) <= set(range(8))
        buffer.shutdown()
        with pytest.raises(ServiceUnavailableError):
            worker_buffer.sample(4)


def test_it_has_the_calls_of_a_buffer(owner: Any) -> None:
    assert owner.extend(stamped_rows(10)).tolist() == list(range(10))
    assert owner.add(stamped_rows(1)[0]) == 10
    assert (len(owner), owner.write_count, owner.batch_size) == (11, 11, 8)
    assert_rows_are_whole(owner.sample())
    assert owner.next().shape == (8,)
    owner[0] = stamped_rows(1, stamp=30)[0]
    assert owner[0]["action"] == 30
    owner.write_all(stamped_rows(2, stamp=50), 2)
    assert owner.read_all_in_order(2)["action"].tolist() == [50, 51]
    assert not owner.update_priority([0], [1.0]).updated.any()
    assert owner.stats()["size"] == 11


def test_what_only_an_owner_can_do(owner: Any) -> None:
    owner.extend(stamped_rows(10))
    owner.set_rng(torch.Generator().manual_seed(7))
    first = owner.sample()["index"]
    owner.set_rng(torch.Generator().manual_seed(7))
    assert torch.equal(owner.sample()["index"], first)
    owner.set_sampler(RandomSampler())
    owner.mark_update(torch.tensor([0]))
    owner.synchronize()
    state = owner.state_dict()
    owner.empty()
    assert (len(owner), owner.write_count) == (0, 0)
    owner.load_state_dict(state)
    assert owner[:]["action"].tolist() == list(range(10))
    with pytest.raises(TypeError, match="sampler"):
        owner.set_sampler(3)
    assert owner.sample().shape == (8,)


def test_clients_are_independent(owner: Any) -> None:
    clients = owner.clients(3)
    assert all(isinstance(client, ReplayClient) for client in clients)
    clients[0].extend(stamped_rows(5))
    clients[0].close()
    assert [len(client) for client in clients[1:]] == [5, 5]
    for wrong in (0, -1, True, 1.5, "2"):
        with pytest.raises(ValueError, match="num_clients"):
            owner.clients(wrong)


def test_it_tells_what_it_is(owner: Any) -> None:
    assert isinstance(owner, RayReplayBuffer)
    assert not isinstance(owner, ReplayBuffer)
    assert (owner.service_backend, owner.transport_kind) == ("ray", "ray")
    assert owner.address.name in repr(owner)
    assert owner.is_alive()


def test_what_another_process_gets_is_a_handle(owner: Any) -> None:
    owner.extend(stamped_rows(3))
    copy = pickle.loads(pickle.dumps(owner))
    assert isinstance(copy, ReplayClient)
    assert len(copy) == 3


def test_names_ends_and_a_detached_life(start: Start, ray_session: RaySession) -> None:
    name = unique()
    options = {"name": name, "namespace": ray_session.namespace}
    owner = start(options=options, priority_key="loss", batch_size=5)
    with pytest.raises(ValueError, match=f"name .*{name}.* must be free in namespace"):
        start(options=options)
    handle = connect(name, namespace=ray_session.namespace)
    assert (handle.batch_size, handle.address.priority_key) == (5, "loss")
    waiting = [handle.submit_extend(stamped_rows(2)) for _ in range(10)]
    owner.shutdown()
    assert [future.result().shape for future in waiting] == [(2,)] * 10  # calls in flight finish
    owner.shutdown()
    owner.close()
    assert not owner.is_alive()
    assert "stopped" in repr(owner)
    for call in (owner.client, owner.sample, owner.start, lambda: len(owner), owner.empty):
        with pytest.raises(ClosedError, match="shut down"):
            call()
    with pytest.raises(ServiceUnavailableError, match=name):
        len(handle)
    _delayed_and_detached(name, ray_session.namespace)
    assert len(handle) == 4  # the same name again is the same address, and its owner is gone
    assert len(connect(name, namespace=ray_session.namespace)) == 4
    with attach(name, ray_session.namespace) as attached:
        assert attached.batch_size == 8
    with pytest.raises(ServiceUnavailableError, match=name):
        len(handle)
    with pytest.raises(ServiceUnavailableError, match=name):
        attach(name, ray_session.namespace)


def _delayed_and_detached(name: str, namespace: str) -> None:
    """Starts a service when it is told to, and lets go of its owner, which a detached one survives."""
    owner: Any = TensorDictReplayBuffer(
        storage=partial(LazyTensorStorage, CAPACITY),
        batch_size=8,
        delayed_init=True,
        service_backend="ray",
        service_backend_options={
            "name": name,
            "namespace": namespace,
            "lifetime": "detached",
            "remote_config": {"num_cpus": 0},
        },
    )
    assert not owner.is_alive()
    with pytest.raises(ClosedError, match="start"):
        owner.client()
    assert owner.start() is owner
    assert owner.start() is owner
    owner.extend(stamped_rows(4))
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


def test_a_service_that_cannot_be_built_says_why_and_leaves_nothing(start: Start, ray_session: RaySession) -> None:
    name = unique()
    options = {"name": name, "namespace": ray_session.namespace}
    with pytest.raises(ValueError, match="max_size"):
        start(storage=partial(ListStorage, 0), options=options)
    with pytest.raises(ServiceUnavailableError, match=name):
        connect(name, namespace=ray_session.namespace)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"transport": "tcp"}, "transport"),
        ({"transport_options": {"backend": "mpi"}}, "backend"),
        ({"transport_options": {"speed": 9}}, "transport_options"),
        ({"options": {"timeout": 0}}, "timeout"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_settings_that_make_no_sense(start: Start, settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        start(**settings)


def test_a_backend_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match="service_backend"):
        ReplayBuffer(service_backend="carrier pigeons")


@pytest.mark.parametrize(
    "arguments",
    [{"name": ""}, {"name": 3}, {"namespace": ""}, {"namespace": None}, {"timeout": 0}, {"timeout": True}],
)
def test_connect_refuses_what_cannot_be(ray_session: RaySession, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        connect(**{"name": "any", **arguments})


def test_connect_to_nobody(ray_session: RaySession) -> None:
    with pytest.raises(
        ServiceUnavailableError, match=r"'nobody'.*'nowhere' of the Ray at [\d.]+:\d+; .*give its address"
    ):
        connect("nobody", namespace="nowhere")


def test_a_service_that_does_not_answer(owner: Any) -> None:
    address = owner.address
    client = owner.client()
    client.extend(stamped_rows(10))
    pid = client.stats()["service"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(ReplayTimeoutError, match=r"timeout \(0.2 s\)"):
            client.sample(timeout=0.2)
        with pytest.raises(ReplayTimeoutError, match=address.name):
            owner.client().sample(timeout=0.2)  # has not joined yet
        with pytest.raises(ReplayTimeoutError, match=address.name):
            connect(address.name, namespace=address.namespace, timeout=0.2)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert client.sample().shape == (8,)


def test_no_more_extends_are_under_way_than_allowed(owner: Any) -> None:
    client = ReplayClient(pickle.loads(pickle.dumps(owner.address)))
    client.extend(stamped_rows(1))
    pid = client.stats()["service"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        impatient = ReplayClient(replace(owner.address, timeout_s=0.3))
        with pytest.raises(ReplayTimeoutError):
            impatient.submit_extend(stamped_rows(1))  # cannot even join
        waiting = [client.submit_extend(stamped_rows(1)) for _ in range(16)]
        assert not any(future.done() for future in waiting)
        with pytest.raises(ReplayTimeoutError):
            waiting[0].result(0.1)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert [int(future.result()) for future in waiting] == list(range(1, 17))
