"""A hosted buffer over the tensor channel: real Ray, real gloo, real processes that die and stop."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tensordict import TensorDict

from clients import ReplayClient, connect
from replay_service import (
    LazyTensorStorage,
    ReplayTimeoutError,
    ServiceUnavailableError,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TransportUnavailableError,
)
from replay_service.wire.verbs import RECORD_VERBS
from tests.conftest import RaySession
from tests.rows import assert_rows_are_whole, stamped_rows
from tests.wire.serving import House

CAPACITY = 1000
SOON_S = 15.0

PRELUDE = """
import base64, os, pickle, sys, time
import ray
ray.init(address=sys.argv[1], namespace=sys.argv[2], log_to_driver=False, logging_level="ERROR")
client = pickle.loads(base64.b64decode(sys.argv[3]))
from tests.rows import assert_rows_are_whole, stamped_rows
"""


RECIPE = partial(
    TensorDictReplayBuffer,
    storage=partial(LazyTensorStorage, CAPACITY),
    writer=partial(TensorDictRoundRobinWriter, track_generations=True),
    batch_size=8,
)


@pytest.fixture
def owner(guest_house: House) -> Any:
    """A buffer of the test's own."""
    return guest_house.host(RECIPE, "distributed")


@pytest.fixture
def run_client(ray_session: RaySession) -> Iterator[Callable[[ReplayClient, str], subprocess.Popen[str]]]:
    """Starts a plain process that has a copy of a handle, and runs some lines in it."""
    import base64

    started: list[subprocess.Popen[str]] = []

    def run(client: ReplayClient, lines: str) -> subprocess.Popen[str]:
        packed = base64.b64encode(pickle.dumps(client)).decode()
        command = [sys.executable, "-c", PRELUDE + lines, ray_session.address, ray_session.namespace, packed]
        environment = (
            {**os.environ, "RAY_AUTH_MODE": "token"} if (Path.home() / ".ray" / "auth_token").is_file() else None
        )
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.communicate()


def ready(process: subprocess.Popen[str]) -> None:
    """Waits until the process has printed a line."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.strip() == "ready", process.communicate()[1]


def test_every_verb_goes_over_the_channel(owner: Any, tmp_path: Path) -> None:
    client = owner.client()
    client.extend(stamped_rows(20))
    batch = client.sample(5)
    client.add(stamped_rows(1)[0])
    client.update_priority(batch["index"], torch.ones(5), generation=batch["index_generation"])
    client.update_if_present(
        index=batch["index"], generation=batch["index_generation"], patch={"action": batch["action"]}
    )
    client[0] = client[1]
    client.write_all(client.read_all_in_order())
    client.dumps(tmp_path / "saved")
    client.loads(tmp_path / "saved")
    assert (len(client), client.write_count) == (21, 21)
    meters = client.stats()["service"]["verbs"]
    routes = {verb: meter["route"] for verb, meter in client.stats()["service"]["verbs"].items()}
    assert set(routes.values()) == {"distributed"}
    assert set(routes) == {verb.name.lower() for verb in RECORD_VERBS} - {"query", "close"}
    assert all(meter["why"] for meter in meters.values())


def test_objects_are_refused_before_sending(owner: Any) -> None:
    client = owner.client()
    client.extend(stamped_rows(4))
    with pytest.raises(TransportUnavailableError, match="'auto' or 'ray'"):
        client.extend(["a string"])
    assert client.write_count == 4


def test_two_hundred_megabytes_in_one_extend(owner: Any) -> None:
    client = owner.client()
    data = TensorDict({"wide": torch.arange(100 * 250_000).view(100, 250_000)}, [100])
    client.extend(data)
    read = client[torch.tensor([0, 99])]
    assert torch.equal(read["wide"], data["wide"][[0, 99]])
    assert len(client) == 100


def test_copies_in_other_processes_are_conversations_of_their_own(
    owner: Any, run_client: Callable[[ReplayClient, str], subprocess.Popen[str]]
) -> None:
    client = owner.client()
    client.extend(stamped_rows(50))
    lines = """
for _ in range(20):
    client.extend(stamped_rows(3, stamp=int(sys.argv[0] == "-c") * 7))
    assert_rows_are_whole(client.sample(16))
print("ready", client.write_count > 0)
"""
    processes = [run_client(client, lines) for _ in range(3)]
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert out.startswith("ready")
    assert client.write_count == 50 + 3 * 20 * 3
    assert_rows_are_whole(client.read_all_in_order())


def test_a_copy_has_a_channel_of_its_own(owner: Any) -> None:
    client = owner.client()
    client.extend(stamped_rows(8))
    first = client.sample()
    copy = pickle.loads(pickle.dumps(client))
    assert copy.sample().shape == first.shape
    assert client.sample().shape == first.shape


def test_a_forked_process_is_told_at_once_what_only_goes_over_the_ray_that_it_lost(owner: Any) -> None:
    client = owner.client()
    client.extend(stamped_rows(8))
    client.sample()
    over_ray = ReplayClient(replace(client.address, transport="ray"))
    over_ray.sample()
    began = time.monotonic()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            for call in (over_ray.sample, lambda: connect("any"), owner.empty, owner.shutdown):
                os.write(writing, _told(call).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        words = told.read().splitlines()
    os.waitpid(child, 0)
    assert time.monotonic() - began < SOON_S
    assert len(words) == 4
    assert all("ServiceUnavailableError" in line and "'spawn'" in line for line in words[:3]), words
    assert words[3] == "nothing"
    assert client.sample().shape == (8,)  # the parent's conversation goes on, and its service was not stopped


def _told(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}\n"
    return "nothing\n"


def test_a_client_killed_in_the_middle_of_an_extend_stores_nothing(
    owner: Any, run_client: Callable[[ReplayClient, str], subprocess.Popen[str]], wait_until: Any
) -> None:
    client = owner.client()
    client.extend(TensorDict({"wide": torch.zeros(4, 100_000, dtype=torch.int64)}, [4]))
    lines = """
import torch, threading
from tensordict import TensorDict
data = TensorDict({"wide": torch.ones(200, 100_000, dtype=torch.int64)}, [200])
len(client)
threading.Timer(0.02, lambda: os.kill(os.getpid(), 9)).start()
print("ready", flush=True)
while True:
    client.extend(data)
"""
    process = run_client(client, lines)
    ready(process)
    process.wait(30)
    wait_until(lambda: client.stats()["service"]["channels"] == 1, 20.0)
    read = client.read_all_in_order()["wide"]
    # Whole extends may have been stored before the kill; none in part.
    assert (len(client) - 4) % 200 == 0
    assert (read[4:] == 1).all()
    assert client.sample(3).shape == (3,)


def test_a_stopped_client_holds_up_nobody(
    owner: Any, run_client: Callable[[ReplayClient, str], subprocess.Popen[str]]
) -> None:
    client = owner.client()
    client.extend(TensorDict({"wide": torch.arange(64 * 100_000).view(64, 100_000)}, [64]))
    lines = """
client.sample(64)
print("ready", flush=True)
while True:
    client.sample(64)
"""
    process = run_client(client, lines)
    ready(process)
    process.send_signal(signal.SIGSTOP)
    for _ in range(20):
        assert client.sample(4, timeout=SOON_S).shape == (4,)
    process.send_signal(signal.SIGCONT)
    assert process.poll() is None
    assert client.sample(4, timeout=SOON_S).shape == (4,)


def test_a_killed_service_fails_every_call_in_flight(owner: Any) -> None:
    clients = owner.clients(4)
    clients[0].extend(stamped_rows(100))
    pid = clients[0].stats()["service"]["pid"]
    caught: list[BaseException] = []
    calling = threading.Barrier(5)

    def call(client: ReplayClient) -> None:
        client.sample()
        calling.wait(30)
        try:
            while True:
                client.sample(64)
        except BaseException as error:  # handed to the main thread
            caught.append(error)

    threads = [threading.Thread(target=call, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    calling.wait(30)
    os.kill(pid, signal.SIGKILL)
    killed = time.monotonic()
    for thread in threads:
        thread.join(2 * SOON_S)
    assert time.monotonic() - killed < SOON_S
    assert [type(error) for error in caught] == [ServiceUnavailableError] * 4
    with pytest.raises(ServiceUnavailableError):
        clients[0].sample()


def test_after_a_timeout_the_handle_works_over_a_new_pair(owner: Any) -> None:
    client = owner.client()
    client.extend(stamped_rows(8))
    pid = client.stats()["service"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(ReplayTimeoutError):
            client.sample(timeout=0.3)
        for other in (client, owner.client()):  # neither a new pair nor a first one can be had now
            with pytest.raises(ReplayTimeoutError):
                other.sample(timeout=0.3)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert client.sample(4).shape == (4,)
    assert_rows_are_whole(client.read_all_in_order())


def test_the_applications_own_group_is_left_alone(owner: Any) -> None:
    client = owner.client()
    client.extend(stamped_rows(8))
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            total = torch.ones(3)
            dist.all_reduce(total)
            assert total.tolist() == [1.0, 1.0, 1.0]
            assert owner.client().sample(4).shape == (4,)
            assert client.sample(4).shape == (4,)
        finally:
            dist.destroy_process_group()
    assert client.sample(4).shape == (4,)
    assert not dist.is_initialized()


def test_a_backend_that_is_missing_is_refused_at_construction(ray_session: RaySession) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(TransportUnavailableError, match="CUDA"):
        RECIPE(service_backend="ray", transport="distributed", transport_options={"backend": "nccl"})
