"""Parts: instances, classes and factories; and the buffer that connects and exchanges them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from replay_service import (
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from replay_service.buffer.assembly import batch_size_of, make_sampler, make_storage, make_writer


def test_defaults() -> None:
    assert (type(make_storage(None)), make_storage(None).max_size) == (ListStorage, 1000)
    assert type(make_sampler(None)) is RandomSampler
    assert type(make_writer(None)) is RoundRobinWriter
    assert type(TensorDictReplayBuffer().writer) is TensorDictRoundRobinWriter
    assert type(TensorDictReplayBuffer(writer=RoundRobinWriter).writer) is RoundRobinWriter


def test_instances_classes_and_factories() -> None:
    storage = LazyTensorStorage(3)
    assert make_storage(storage) is storage
    assert make_storage(ListStorage).max_size > 10**9
    assert make_storage(partial(LazyTensorStorage, 5)).max_size == 5
    assert type(make_sampler(lambda: RandomSampler())) is RandomSampler


@pytest.mark.parametrize("given", ["list", 5, object(), dict, RandomSampler])
def test_what_is_no_part_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match="storage must be a Storage, its class or a factory of one; got"):
        ReplayBuffer(storage=given)


def test_batch_sizes() -> None:
    assert batch_size_of(3) == 3
    with pytest.raises(TypeError, match="batch_size"):
        ReplayBuffer(batch_size=2.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"batch_size \(0\)"):
        ReplayBuffer(batch_size=0)


def test_a_backend_that_does_not_exist() -> None:
    with pytest.raises(ValueError, match=r"service_backend \('cloud'\) must be one of \['direct', 'ray'\]"):
        ReplayBuffer(service_backend="cloud")


# -- exchanging parts ---------------------------------------------------------------------------------------------------


def _filled(rows: int = 5, capacity: int = 8) -> ReplayBuffer:
    buffer = ReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=2)
    buffer.extend(torch.arange(rows))
    return buffer


def test_another_storage_starts_over_on_what_it_holds() -> None:
    buffer = _filled()
    generator = buffer.storage.generator
    other = LazyTensorStorage(3)
    other.set(range(1), torch.tensor([70]))
    sampler = _Telling()
    buffer.set_sampler(sampler)
    previous = buffer.set_storage(other)
    assert (sampler.emptied, sampler.extended) == (1, [[0, 1, 2, 3, 4], [0]])
    assert (len(previous), len(buffer), buffer.write_count) == (5, 1, 0)
    assert buffer.storage is other
    assert other.generator is generator
    assert buffer.extend(torch.tensor([71, 72, 73])).tolist() == [1, 2, 0]
    assert buffer[:].tolist() == [73, 71, 72]
    assert set(buffer.sample(50).tolist()) == {71, 72, 73}
    assert previous.get(slice(None)).tolist() == [0, 1, 2, 3, 4]


def test_collate_fn_goes_with_the_storage() -> None:
    buffer = ReplayBuffer(storage=ListStorage(4), collate_fn=lambda records: ("old", records))
    buffer.set_storage(ListStorage(4), collate_fn=lambda records: ("new", records))
    buffer.extend([1, 2])
    assert buffer[:] == ("new", [1, 2])
    buffer.set_storage(ListStorage(4))
    buffer.extend([1, 2])
    assert buffer[:] == [1, 2]


def test_the_old_storage_tells_the_buffer_nothing_more() -> None:
    buffer = _filled()
    sampler = _Telling()
    buffer.set_sampler(sampler)
    old = buffer.set_storage(LazyTensorStorage(4))
    buffer.extend(torch.arange(2))
    sampler.told.clear()
    old[[0]] = torch.tensor([9])
    assert sampler.told == []
    buffer.storage[[1]] = torch.tensor([9])
    assert sampler.told == [[1]]


def test_another_writer_goes_on() -> None:
    buffer = _filled()
    previous = buffer.set_writer(RoundRobinWriter(track_generations=True))
    assert previous.write_count == 5
    assert buffer.extend(torch.tensor([5, 6])).tolist() == [5, 6]
    _, info = buffer.sample(4, return_info=True)
    assert "index_generation" in info


def test_another_sampler_is_told_of_all_records() -> None:
    buffer = _filled()
    sampler = _Telling()
    assert type(buffer.set_sampler(sampler)) is RandomSampler
    assert sampler.extended == [[0, 1, 2, 3, 4]]
    buffer.extend(torch.tensor([5]))
    assert sampler.extended[1:] == [[5]]


@pytest.mark.parametrize("call", ["set_storage", "set_writer", "set_sampler"])
def test_what_is_no_part_exchanges_nothing(call: str) -> None:
    buffer = _filled()
    parts = (buffer.storage, buffer.writer, buffer.sampler)
    with pytest.raises(TypeError, match="must be a"):
        getattr(buffer, call)(object())
    assert (buffer.storage, buffer.writer, buffer.sampler) == parts
    assert buffer[:].tolist() == [0, 1, 2, 3, 4]


def test_records_that_were_there_are_announced() -> None:
    storage = LazyTensorStorage(4)
    storage.set(range(3), torch.arange(3))
    sampler = _Telling()
    buffer = ReplayBuffer(storage=storage, sampler=sampler)
    assert sampler.extended == [[0, 1, 2]]
    assert buffer.extend(torch.tensor([3, 4])).tolist() == [3, 0]


def test_two_buffers_of_one_storage_exclude_each_other() -> None:
    storage = LazyTensorStorage(4)
    assert ReplayBuffer(storage=storage).lock is ReplayBuffer(storage=storage).lock


class _Telling(RandomSampler):
    def __init__(self) -> None:
        self.told: list[list[int]] = []
        self.extended: list[list[int]] = []
        self.emptied = 0

    def empty(self) -> None:
        self.emptied += 1

    def extend(self, index: torch.Tensor) -> None:
        self.extended.append(index.tolist())

    def mark_update(self, index: torch.Tensor, *, storage: Any = None) -> None:
        self.told.append(index.tolist())
