"""Handles in many threads and processes, on a service that lives, stops and dies; everything over Ray objects."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psutil
import pytest
import ray

from clients import ReplayClient
from replay_service import LazyTensorStorage, TensorDictReplayBuffer
from replay_service.errors import ServiceUnavailableError
from tests.conftest import RaySession
from tests.rows import assert_rows_are_whole, stamped_rows
from tests.service.processes import Worker
from tests.wire.serving import House

CAPACITY = 500
SOON_S = 15.0
LONG_S = 60.0


@pytest.fixture
def owner(guest_house: House) -> Any:
    recipe = partial(TensorDictReplayBuffer, storage=partial(LazyTensorStorage, CAPACITY), batch_size=8)
    return guest_house.host(recipe, "ray")


@pytest.fixture
def work(ray_session: RaySession) -> Iterator[Callable[[ReplayClient, str], Worker]]:
    """Starts plain processes with a copy of a handle."""
    workers = []

    def begin(client: ReplayClient, script: str) -> Worker:
        workers.append(Worker(ray_session, client, script))
        return workers[-1]

    yield begin
    for worker in workers:
        worker.end()


class Holder:
    """A Ray actor that got a handle as an argument."""

    def __init__(self, client: ReplayClient) -> None:
        self._client = client

    def write(self, rows: int) -> int:
        self._client.extend(stamped_rows(rows))
        assert_rows_are_whole(self._client.sample(4))
        return len(self._client)


def test_a_handle_that_went_through_ray(owner: Any) -> None:
    actor: Any = ray.remote(Holder).options(num_cpus=0)
    holder = actor.remote(owner.client())
    assert ray.get(holder.write.remote(20), timeout=LONG_S) == 20
    ray.kill(holder)
    assert len(owner) == 20


COUNTED = """
client.extend(stamped_rows(30))
assert_rows_are_whole(client.sample(16))
try:
    client.shutdown
except AttributeError as error:
    print(len(client), error)
say("ready")
time.sleep(3600)
"""


def test_handles_that_went_through_pickle_work_and_count_until_their_process_dies(
    owner: Any, work: Callable[..., Worker], wait_until: Any
) -> None:
    client = owner.client()
    owner.stats()

    def wait_for(clients: int) -> None:
        wait_until(lambda: client.stats()["service"]["clients"] == clients, SOON_S, f"{clients} clients")

    wait_for(2)  # the owner's own handle and this one; the process of the test before has died
    workers = [work(client, COUNTED) for _ in range(2)]
    for worker in workers:
        wait_until(partial(worker.said, "ready"), LONG_S)
    wait_for(4)
    workers[0].end()
    wait_for(3)
    with owner.client() as another:
        assert len(another) == 60
        wait_for(4)
    wait_for(3)


LEAVING = """
assert len(client) == 5
ray.shutdown()
from replay_service.errors import ServiceUnavailableError
for call in (client.sample, lambda: client.submit_sample()):
    try:
        call()
    except ServiceUnavailableError as error:
        print(type(error).__name__, "left its Ray" in str(error) or "joined to the Ray" in str(error))
print(ray.is_initialized())
ray.init(address=sys.argv[1], namespace=sys.argv[2], log_to_driver=False, logging_level="ERROR")
print(client.sample(3).shape)
client.close()
ray.shutdown()
client.close()
"""


def test_a_process_that_leaves_ray_and_comes_back(owner: Any, work: Callable[..., Worker]) -> None:
    owner.extend(stamped_rows(5))
    printed = work(owner.client(), LEAVING).printed(LONG_S).splitlines()
    assert printed == ["ServiceUnavailableError True"] * 2 + ["False", "torch.Size([3])"]


CALLING = """
from replay_service.errors import ServiceUnavailableError
client.sample()
say("ready")
try:
    while True:
        client.sample(64)
        client.extend(stamped_rows(8))
except ServiceUnavailableError as error:
    print(time.time())
"""


def test_a_service_that_is_killed_while_four_clients_call(
    owner: Any, work: Callable[..., Worker], wait_until: Any
) -> None:
    owner.extend(stamped_rows(100))
    workers = [work(owner.client(), CALLING) for _ in range(2)]
    ended: list[tuple[type, float]] = []
    started = threading.Barrier(3)

    def call(client: ReplayClient) -> None:
        client.sample()
        started.wait(LONG_S)
        try:
            while True:
                client.sample(64)
        except Exception as error:
            ended.append((type(error), time.time()))

    threads = [threading.Thread(target=call, args=(client,)) for client in owner.clients(2)]
    for thread in threads:
        thread.start()
    started.wait(LONG_S)
    for worker in workers:
        wait_until(partial(worker.said, "ready"), LONG_S)
    os.kill(owner.stats()["service"]["pid"], signal.SIGKILL)
    killed = time.time()
    for thread in threads:
        thread.join(2 * SOON_S)
    times = [at for _, at in ended] + [float(worker.printed(2 * SOON_S)) for worker in workers]
    assert [kind for kind, _ in ended] == [ServiceUnavailableError] * 2
    assert max(times) - killed < SOON_S
    assert not owner.is_alive()
    owner.shutdown()


def test_eight_threads_share_a_handle(owner: Any) -> None:
    client = owner.client()
    client.extend(stamped_rows(CAPACITY))
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            for size in range(1, 16):
                future = client.submit_extend(stamped_rows(number + 1, stamp=size))
                batch = client.sample(size)
                assert batch.shape == (size,)
                assert_rows_are_whole(batch)
                assert future.result().shape == (number + 1,)
        except BaseException as error:  # handed to the main thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert not failures
    assert client.write_count == CAPACITY + 15 * sum(range(1, 9))
    assert_rows_are_whole(client[:])


def test_memory_does_not_grow(owner: Any) -> None:
    """After the ring is full; batch sizes change from call to call, small ones inlined by Ray, large ones not."""
    client = owner.client()

    def rounds(count: int) -> None:
        for number in range(count):
            client.extend(stamped_rows((64, 7, 1, 300)[number % 4]))
            assert client.sample((256, 7, 1, 3000)[number % 4]).shape[0] > 0

    def resident() -> list[int]:
        return [psutil.Process().memory_info().rss, client.stats()["service"]["memory_bytes"]]

    rounds(300)
    before = resident()
    rounds(1000)
    grown = [after / size for after, size in zip(resident(), before, strict=True)]
    assert max(grown) < 1.05
