"""LazyStackStorage: ragged TensorDicts, read as lazy stacks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict, tensorclass

from replay_service import ReplayBuffer, TensorDictReplayBuffer
from replay_service.buffer.storages.lazy_stack import LazyStackStorage
from replay_service.errors import LayoutError
from tests.contracts.storage import StorageContract


class TestLazyStackStorage(StorageContract):
    def make(self, capacity: int) -> LazyStackStorage:
        return LazyStackStorage(capacity)


def _ragged(*lengths: int) -> list[TensorDict]:
    return [TensorDict({"a": torch.full((n,), n), "b": torch.tensor(n), "c": f"text {n}"}, []) for n in lengths]


def test_ragged_records_are_stacked_lazily() -> None:
    storage = LazyStackStorage(4)
    storage.set(range(3), _ragged(1, 2, 3))
    got = storage.get([2, 0])
    assert isinstance(got, LazyStackedTensorDict)
    assert got["b"].tolist() == [3, 1]
    assert [record["a"].tolist() for record in got.unbind(0)] == [[3, 3, 3], [1]]
    assert got[0]["c"] == "text 3"
    with pytest.raises(RuntimeError):
        got["a"]


def test_samples_of_a_tensordict_buffer_carry_their_index() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyStackStorage(4), batch_size=8)
    buffer.extend(_ragged(1, 2, 3))
    sample = buffer.sample()
    assert sample.batch_size == (8,)
    assert (sample["b"] - 1 == sample["index"]).all()
    assert [record["a"].numel() for record in sample.unbind(0)] == sample["b"].tolist()
    assert buffer[:]["b"].tolist() == [1, 2, 3]
    assert buffer.read_all_in_order()["b"].tolist() == [1, 2, 3]


def test_a_lazy_stack_goes_in_again() -> None:
    buffer = ReplayBuffer(storage=LazyStackStorage(6))
    buffer.extend(_ragged(1, 2))
    assert buffer.extend(buffer[:]).tolist() == [2, 3]
    assert [record["a"].numel() for record in buffer[:].unbind(0)] == [1, 2, 1, 2]


def test_stack_dim_is_a_dimension_of_batches() -> None:
    storage = LazyStackStorage(4, stack_dim=1)
    storage.set(range(2), [TensorDict({"a": torch.full((3, n), n)}, [3]) for n in (1, 2)])
    assert storage.get(slice(None)).batch_size == (3, 2)
    assert storage.get([]).batch_size == (3, 0)
    last = LazyStackStorage(4, stack_dim=-1)
    last.set(range(2), _ragged(1, 2))
    assert last.get(slice(None)).batch_size == (2,)


def test_a_stack_dim_that_no_batch_has_is_refused() -> None:
    storage = LazyStackStorage(4, stack_dim=1)
    with pytest.raises(LayoutError, match="stack_dim"):
        storage.set(range(1), _ragged(1))
    assert len(storage) == 0
    with pytest.raises(TypeError, match="stack_dim"):
        LazyStackStorage(4, stack_dim=0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("record", [torch.ones(2), {"a": torch.ones(2)}, "text"])
def test_what_is_no_tensordict_is_refused(record: Any) -> None:
    storage = LazyStackStorage(4)
    storage.set(range(1), _ragged(1))
    for call in (lambda: storage.prepare([record]), lambda: storage.prepare_one(record)):
        with pytest.raises(LayoutError, match="data must be made of TensorDicts"):
            call()
    assert len(storage) == 1


@tensorclass
class Words:
    tokens: torch.Tensor


def test_tensorclasses_stay_what_they_are() -> None:
    storage = LazyStackStorage(2)
    storage.set(range(2), [Words(tokens=torch.arange(n), batch_size=[]) for n in (1, 3)])
    assert isinstance(storage.get(slice(None))[1], Words)
    assert storage.get(1).tokens.tolist() == [0, 1, 2]


def test_an_empty_storage_gives_an_empty_list() -> None:
    assert LazyStackStorage(2).get(slice(None)) == []
