"""ImmutableDatasetWriter: nothing is added, nothing forgotten."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from replay_service import (
    ImmutableDatasetWriter,
    LazyTensorStorage,
    RoundRobinWriter,
    TensorDictReplayBuffer,
    TensorStorage,
)
from tests.rows import stamped_rows


@pytest.fixture
def data_set() -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(storage=TensorStorage(stamped_rows(6)), writer=ImmutableDatasetWriter, batch_size=4)


@pytest.mark.parametrize(
    "call",
    [
        lambda buffer: buffer.extend(stamped_rows(2)),
        lambda buffer: buffer.extend(stamped_rows(0)),
        lambda buffer: buffer.add(stamped_rows(1)[0]),
        lambda buffer: buffer.empty(),
        lambda buffer: buffer.writer.extend(stamped_rows(2)),
        lambda buffer: buffer.writer.add(stamped_rows(1)[0]),
    ],
)
def test_writes_are_refused(data_set: TensorDictReplayBuffer, call: Callable[[TensorDictReplayBuffer], object]) -> None:
    with pytest.raises(RuntimeError, match=r"writer .ImmutableDatasetWriter. must allow writing"):
        call(data_set)
    assert data_set[:]["action"].tolist() == [0, 1, 2, 3, 4, 5]
    assert data_set.write_count == 0


def test_it_is_sampled_and_may_get_targets(data_set: TensorDictReplayBuffer) -> None:
    data = data_set[:]
    data["target"] = data["action"] + 1
    data_set[:] = data
    sample = data_set.sample()
    assert (sample["target"] == sample["action"] + 1).all()


def test_storages_and_writers_can_be_exchanged(data_set: TensorDictReplayBuffer) -> None:
    data_set.set_storage(TensorStorage(stamped_rows(3, stamp=50)))
    assert data_set[:]["action"].tolist() == [50, 51, 52]
    data_set.set_writer(RoundRobinWriter())
    assert data_set.extend(stamped_rows(1, stamp=9)).tolist() == [0]
    data_set.set_writer(ImmutableDatasetWriter())
    with pytest.raises(RuntimeError):
        data_set.extend(stamped_rows(1))


def test_its_state_is_empty(data_set: TensorDictReplayBuffer, tmp_path: Path) -> None:
    data_set.load_state_dict(data_set.state_dict())
    data_set.writer.dumps(tmp_path)
    data_set.writer.loads(tmp_path)
    assert data_set.writer.state_dict() == {}
    assert data_set.writer.generations_of(torch.arange(2)).tolist() == [-1, -1]


def test_an_empty_data_set_stays_empty() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(3), writer=ImmutableDatasetWriter())
    with pytest.raises(RuntimeError, match="ImmutableDatasetWriter"):
        buffer.extend(TensorDict({"a": torch.ones(2)}, [2]))
    assert len(buffer) == 0
