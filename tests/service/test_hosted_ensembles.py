"""Several buffers in one actor, made there by factories, and recorded steps that are copied through a handle; over both transports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from clients import ReplayClient
from replay_service import (
    LayoutError,
    LazyTensorStorage,
    OfflineToOnlineReplayBuffer,
    PrioritizedSampler,
    ReplayBufferEnsemble,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    open_offline_file,
    prefill_replay_buffer,
    traj,
)
from tests.buffer.ensembles import routed_rows
from tests.buffer.offline_files.recorded import write_minari
from tests.conftest import RaySession
from tests.rows import assert_rows_are_whole, stamped_rows

TRANSPORTS = ("ray", "distributed")
OPTIONS = {"remote_config": {"num_cpus": 0}}


def _member() -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(10),
        sampler=PrioritizedSampler(10, 1.0, 1.0, eps=0.0),
        writer=TensorDictRoundRobinWriter(track_generations=True),
    )


SETTINGS: dict[str, Any] = {"batch_size": 8, "routing_key": "who", "sample_from_all": True}


@pytest.fixture(scope="module")
def hosted(ray_session: RaySession) -> Iterator[Any]:
    with ReplayBufferEnsemble(
        _member, _member, **SETTINGS, service_backend="ray", service_backend_options=OPTIONS
    ) as made:
        yield made


@pytest.fixture(params=["local", "hosted"])
def owner(request: pytest.FixtureRequest) -> Any:
    """An empty ensemble in this process, and a hosted one: what holds for one holds for the other."""
    if request.param == "local":
        return ReplayBufferEnsemble(_member, _member, **SETTINGS)
    hosted = request.getfixturevalue("hosted")
    hosted.empty()
    return hosted


@pytest.fixture(params=["local", *TRANSPORTS])
def both(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The same ensembles as their clients see them: a handle of each transport."""
    if request.param == "local":
        yield ReplayBufferEnsemble(_member, _member, **SETTINGS).client()
        return
    hosted = request.getfixturevalue("hosted")
    hosted.empty()
    with ReplayClient(replace(hosted.address, transport=request.param)) as client:
        yield client


def test_records_are_routed(both: Any) -> None:
    written = both.extend(routed_rows([1, 0, 1, 1]))
    assert (written["buffer_ids"].tolist(), written["index"].tolist()) == ([1, 0, 1, 1], [0, 0, 1, 2])
    one = both.add(routed_rows([0], stamp=7)[0])
    assert (one.batch_size, int(one["buffer_ids"]), int(one["index"])) == ((), 0, 1)
    assert both.submit_extend(routed_rows([0])).result(20.0)["index"].tolist() == [2]
    assert (len(both), both.write_count >= 6) == (6, True)
    assert both[written]["action"].tolist() == [0, 1, 2, 3]


def test_samples_say_whose_they_are(both: Any) -> None:
    both.extend(routed_rows([0, 1] * 5))
    sample, info = both.sample(return_info=True)
    for data in (sample, both.sample(), both.submit_sample().result(20.0)):
        assert data.batch_size == (2, 4)
        assert_rows_are_whole(data)
        assert data["index", "buffer_ids"].tolist() == [[0] * 4, [1] * 4]
        assert torch.equal(data["action"], data["index", "index"] * 2 + data["index", "buffer_ids"])
        assert data["priority_weight"].shape == (2, 4)
    assert (info["index"] == sample["index"]).all()
    assert torch.equal(info["index_generation"], sample["index_generation"])
    assert both[sample["index"]]["action"].tolist() == sample["action"].tolist()


def test_updates_reach_their_buffers(both: Any) -> None:
    both.extend(routed_rows([0, 1] * 5))
    sample = both.sample()
    both.extend(routed_rows([1] * 10, stamp=100))
    index, stamps = sample["index"], sample["index_generation"]
    result = both.update_priority(index, torch.full((2, 4), 5.0), generation=stamps)
    assert result.updated.tolist() == [[True] * 4, [False] * 4]
    patch = {"next": {"reward": torch.full((2, 4, 1), -1.0)}}
    patched = both.update_if_present(index=index, generation=stamps, patch=patch)
    assert patched.updated.tolist() == [[True] * 4, [False] * 4]
    assert (patched.updated_count, patched.stale_count) == (4, 4)
    assert both[index]["next", "reward"][0].unique().tolist() == [-1.0]
    sample["td_error"] = torch.zeros(2, 4)
    both.update_tensordict_priority(sample)
    zero = set(index["index"][0].tolist())
    if len(zero) < 5:
        assert not zero & set(both.sample()["index", "index"][0].tolist())


def test_refused_calls_change_nothing(both: Any) -> None:
    both.extend(routed_rows([0, 1]))
    with pytest.raises(LayoutError, match="who"):
        both.extend(stamped_rows(2))
    with pytest.raises(ValueError, match=r"who \(2\) must be in \[0, 2\)"):
        both.extend(routed_rows([0, 2]))
    with pytest.raises(LayoutError):
        both.extend(routed_rows([0, 1]).exclude("action"))
    with pytest.raises(IndexError, match="buffer_ids"):
        both.update_priority({"buffer_ids": torch.tensor([0, 5]), "index": torch.tensor([0, 0])}, 1.0)
    with pytest.raises(TypeError, match="must be asked of one of the buffers"):
        both.read_all_in_order()
    assert len(both) == 2


def test_queries_go_through_all(both: Any) -> None:
    both.extend(routed_rows([0, 1] * 8))
    found = both.query(traj.length >= 2)
    assert [t.action.tolist() for t in found] == [[2, 4, 6, 8, 10], [12, 14], [1, 3, 5], [9, 11, 13, 15]]


def test_a_buffer_stays_with_its_service(both: Any) -> None:
    if isinstance(both, ReplayBufferEnsemble):
        assert isinstance(both[0], TensorDictReplayBuffer)
        return
    with pytest.raises(TypeError, match=r"index must name records.*stay with the service"):
        both[0]


def test_the_owner_ends_streams_and_carries_states(owner: Any) -> None:
    owner.extend(routed_rows([0, 1, 0, 1], stamp=1))
    owner.end_streams()
    index = {"buffer_ids": torch.tensor([0, 0, 1, 1]), "index": torch.tensor([0, 1, 0, 1])}
    assert owner[index]["next", "done"].flatten().tolist() == [False, True, False, True]
    assert owner.stats()["num_buffers"] == 2
    local = ReplayBufferEnsemble(_member, _member, batch_size=8, routing_key="who", sample_from_all=True)
    local.load_state_dict(owner.state_dict())
    assert local[1][:]["action"].tolist() == [2, 4]
    if owner.service_backend == "ray":
        with pytest.raises(TypeError, match="anneal must be a call of the hosted buffer"):
            owner.anneal(0, 1)


@pytest.fixture(scope="module")
def recorded(ray_session: RaySession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path]]:
    """A file of recorded steps, and a service that draws from it."""
    path = write_minari(tmp_path_factory.mktemp("recorded") / "cartpole.hdf5")
    with OfflineToOnlineReplayBuffer(
        str(path), online_capacity=500, batch_size=16, service_backend="ray", service_backend_options=OPTIONS
    ) as owner:
        yield owner, path


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_recorded_and_new_steps(transport: str, recorded: tuple[Any, Path]) -> None:
    owner, path = recorded
    owner.empty()
    owner.anneal(0, 4)
    with open_offline_file(path) as file:
        steps = file[:]
    with ReplayClient(replace(owner.address, transport=transport)) as client:
        assert client.sample()["index", "buffer_ids"].tolist() == [0] * 16
        assert prefill_replay_buffer(client, path, n_samples=30, chunk_size=7) is client
        assert (client[:] == steps[:30]).all()
        assert (len(client), client.stats()["online_size"]) == (len(steps) + 30, 30)
        sample, info = client.sample(return_info=True)
        assert sample["index", "buffer_ids"].tolist() == [0] * 8 + [1] * 8
        assert (info["index"] == sample["index"]).all()
        assert torch.equal(client[sample["index"]]["observation"], sample["observation"])
        owner.anneal(3, 4)
        assert client.stats()["offline_fraction"] == 0.125
        assert client.sample()["index", "buffer_ids"].tolist() == [0] * 2 + [1] * 14
        other = TensorDictReplayBuffer(storage=LazyTensorStorage(500))
        prefill_replay_buffer(other, client, chunk_size=8)
        assert len(other) == 30
