"""Checkpoints of hosted buffers: written on the service's node while calls go on, by every route and by the operator's commands."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deploy.checkpoints import load_service, save_service, saved_line
from deploy.moving import export_service, import_into_service
from deploy.state import ServiceRecord
from replay_service import (
    CheckpointError,
    LazyTensorStorage,
    PrioritizedSampler,
    RoundRobinWriter,
    TensorDictReplayBuffer,
)
from tests.buffer.persist.buffers import make, rows, same
from tests.conftest import RaySession
from tests.wire.serving import House

CAPACITY = 4096


RECIPE = partial(
    TensorDictReplayBuffer,
    storage=partial(LazyTensorStorage, CAPACITY),
    sampler=partial(PrioritizedSampler, CAPACITY, alpha=0.7, beta=0.5),
    writer=partial(RoundRobinWriter, track_generations=True),
    batch_size=8,
)


@pytest.fixture
def owner(guest_house: House) -> Any:
    return guest_house.host(RECIPE)


def record_of(owner: Any, ray_session: RaySession) -> ServiceRecord:
    import ray

    return ServiceRecord(owner.address.name, owner.address.namespace, str(ray.get_runtime_context().gcs_address))


def test_what_a_service_saves_a_local_buffer_loads_and_the_other_way_round(owner: Any, tmp_path: Path) -> None:
    owner.set_rng(torch.Generator().manual_seed(3))
    owner.extend(rows(CAPACITY))
    with owner.client() as client:
        first = client.dumps(tmp_path / "c")
        client.extend(rows(200, stamp=10_000))
        second = owner.dumps(tmp_path / "c")
        assert second.written_bytes < 0.15 * second.size_bytes < first.written_bytes
        local = make()
        local.loads(tmp_path / "c")
        assert same(client, local)
        local.extend(rows(30, stamp=20_000))
        local.dumps(tmp_path / "d")
        client.loads(tmp_path / "d")
        assert same(client, local)
        with pytest.raises(CheckpointError, match="has no manifest"):
            client.loads(tmp_path)
        assert len(client) == CAPACITY


@pytest.mark.parametrize("transport", ["ray", "distributed"])
def test_others_go_on_while_it_saves(guest_house: House, transport: str, tmp_path: Path) -> None:
    """Every call of another client ends while saves run one after the other, and no record is torn."""
    owner = guest_house.host(RECIPE, transport)
    owner.extend(rows(CAPACITY))
    saves: list[Any] = []
    is_over = threading.Event()

    def save() -> None:
        with owner.client() as client:
            while not is_over.is_set():
                saves.append(client.dumps(tmp_path / "c"))

    saver = threading.Thread(target=save)
    saver.start()
    calls = 0
    with owner.client() as client:
        deadline = time.monotonic() + 60
        while len(saves) < 2 and time.monotonic() < deadline:
            client.extend(rows(100, stamp=CAPACITY + 100 * calls))
            batch = client.sample(32)
            assert bool((batch["observation"] == batch["number"][:, None]).all())
            calls += 1
    is_over.set()
    saver.join()
    assert len(saves) >= 2
    assert calls > 2
    loaded = make()
    loaded.loads(tmp_path / "c")
    held = loaded[:]
    assert bool((held["observation"] == held["number"][:, None]).all())
    numbers = held["number"].sort().values
    assert torch.equal(numbers, torch.arange(int(numbers[0]), int(numbers[0]) + CAPACITY)), "one moment"


def test_the_commands_of_the_operator(owner: Any, ray_session: RaySession, tmp_path: Path) -> None:
    record = record_of(owner, ray_session)
    owner.extend(rows(100))
    receipt = save_service(record, tmp_path / "c", 60.0)
    assert saved_line("one", receipt).startswith(f"'one' is saved in {tmp_path / 'c'}: ")
    owner.empty()
    assert load_service(record, tmp_path / "c", 60.0) == 100
    assert export_service(record, tmp_path / "out.npz", 64, False) == 100
    with np.load(tmp_path / "out.npz") as archive:
        assert archive["number"].tolist() == list(range(100))
    assert export_service(record, tmp_path / "dump", 64, False) == 100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "dump", "out.npz"]
    assert import_into_service(tmp_path / "dump", record, 64, False) == 100
    assert len(owner) == 200
    assert owner[100:]["number"].tolist() == list(range(100))
