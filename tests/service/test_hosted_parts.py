"""Storages and writers in a real actor, made there by factories, over both transports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from clients import ReplayClient
from replay_service import (
    CompressedListStorage,
    ImmutableDatasetWriter,
    LayoutError,
    LazyMemmapStorage,
    LazyStackStorage,
    PriorityError,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TensorStorage,
)
from tests.conftest import RaySession
from tests.rows import assert_rows_are_whole, stamped_rows
from tests.wire.serving import House

TRANSPORTS = ("ray", "distributed")


@pytest.fixture(scope="module")
def kept(ray_session: RaySession, tmp_path_factory: Any) -> Iterator[tuple[Any, Path]]:
    """The best of all rows by `next.reward`, in files; an actor of its own, since its end is looked at."""
    folder = tmp_path_factory.mktemp("best") / "columns"
    with TensorDictReplayBuffer(
        batch_size=8,
        service_backend="ray",
        service_backend_options={"remote_config": {"num_cpus": 0}},
        storage=partial(LazyMemmapStorage, 4, scratch_dir=str(folder), auto_cleanup=True),
        writer=partial(TensorDictMaxValueWriter, track_generations=True),
    ) as owner:
        yield owner, folder
    assert not folder.exists(), "a service that is shut down takes its files along"


@pytest.fixture(params=TRANSPORTS)
def best(request: pytest.FixtureRequest, kept: tuple[Any, Path]) -> Iterator[tuple[Any, ReplayClient, Path]]:
    """That service without rows, and a handle of each transport."""
    owner, folder = kept
    owner.empty()
    with ReplayClient(replace(owner.address, transport=request.param)) as client:
        yield owner, client, folder


def test_the_best_rows_stay_in_files(best: tuple[Any, ReplayClient, Path]) -> None:
    _, client, folder = best
    assert client.extend(stamped_rows(3, stamp=10)).tolist() == [0, 1, 2]
    assert client.extend(stamped_rows(4, stamp=5)).tolist() == [-1, -1, -1, 3]
    assert client.extend(stamped_rows(2, stamp=90)).tolist() == [3, 0]
    assert client.add(stamped_rows(1)[0]) == -1
    assert client.add(stamped_rows(1, stamp=50)[0]) == 1
    assert client.submit_extend(stamped_rows(1, stamp=1)).result(20.0).tolist() == [-1]
    assert (len(client), client.write_count) == (4, 7)
    assert client[:]["action"].tolist() == [91, 50, 12, 90]
    sample = client.sample(64)
    assert set(sample["action"].tolist()) == {91, 50, 12, 90}
    assert_rows_are_whole(sample)
    actions = np.fromfile(next(folder.glob("*-action.bin")), np.int64)
    assert actions.tolist() == [91, 50, 12, 90]


def test_late_writes_see_what_was_replaced(best: tuple[Any, ReplayClient, Path]) -> None:
    _, client, _ = best
    client.extend(stamped_rows(4, stamp=10))
    sample = client.sample(16)
    client.extend(stamped_rows(1, stamp=99))
    result = client.update_if_present(
        index=sample["index"], generation=sample["index_generation"], patch={"action": sample["action"]}
    )
    assert result.updated.tolist() == (sample["index"] != 0).tolist()
    assert client[:]["action"].tolist() == [99, 11, 12, 13]


def test_refused_rows_change_nothing(best: tuple[Any, ReplayClient, Path]) -> None:
    _, client, _ = best
    client.extend(stamped_rows(2, stamp=10))
    bad = stamped_rows(2, stamp=70)
    bad["next", "reward"][1] = float("nan")
    with pytest.raises(PriorityError, match=r"next\.reward \(nan in row 1\)"):
        client.extend(bad)
    with pytest.raises(LayoutError, match=r"next\.reward"):
        client.extend(bad.exclude(("next", "reward")))
    assert client[:]["action"].tolist() == [10, 11]


def test_its_state_goes_on_elsewhere(best: tuple[Any, ReplayClient, Path]) -> None:
    owner, client, _ = best
    client.extend(stamped_rows(4, stamp=10))
    state = owner.state_dict()
    local = TensorDictReplayBuffer(
        storage=LazyMemmapStorage(4), writer=TensorDictMaxValueWriter(track_generations=True)
    )
    local.load_state_dict(state)
    assert local.extend(stamped_rows(2, stamp=11)).tolist() == [-1, 0]
    owner.load_state_dict(local.state_dict())
    assert client[:]["action"].tolist() == [12, 11, 12, 13]
    assert client.extend(stamped_rows(1, stamp=80)).tolist() == [1]


def test_ragged_rows_travel_as_objects(guest_house: House) -> None:
    rows = [TensorDict({"a": torch.full((n,), n), "n": torch.tensor(n)}, []) for n in (1, 2, 3)]
    recipe = partial(TensorDictReplayBuffer, batch_size=8, storage=partial(LazyStackStorage, 8))
    with guest_house.host(recipe).client() as client:
        assert client.extend(rows).tolist() == [0, 1, 2]
        assert client.add(rows[1]) == 3
        assert [row["a"].tolist() for row in client[:].unbind(0)] == [[1], [2, 2], [3, 3, 3], [2, 2]]
        sample = client.sample(6)
        assert [row["a"].numel() for row in sample.unbind(0)] == sample["n"].tolist()
        assert sample["index"].shape == (6,)


def test_compressed_rows_are_dense_when_they_arrive(guest_house: House) -> None:
    recipe = partial(TensorDictReplayBuffer, batch_size=8, storage=partial(CompressedListStorage, 8))
    with guest_house.host(recipe, "distributed").client() as client:
        assert client.extend(stamped_rows(10)).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]
        sample = client.sample(16)
        assert_rows_are_whole(sample)
        assert client[:]["action"].tolist() == [8, 9, 2, 3, 4, 5, 6, 7]


def _data_set() -> TensorStorage:
    return TensorStorage(stamped_rows(5))


def test_a_fixed_data_set_refuses_writes(guest_house: House) -> None:
    owner = guest_house.host(
        partial(TensorDictReplayBuffer, batch_size=8, storage=_data_set, writer=ImmutableDatasetWriter)
    )
    with owner.client() as client:
        for call in (lambda: client.extend(stamped_rows(1)), lambda: client.add(stamped_rows(1)[0]), owner.empty):
            with pytest.raises(RuntimeError, match="ImmutableDatasetWriter"):
                call()
        assert client[:]["action"].tolist() == [0, 1, 2, 3, 4]
        assert_rows_are_whole(client.sample(9))
