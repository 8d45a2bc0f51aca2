"""Ring writers: around the ring, the oldest makes room, one stamp per write."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from replay_service.buffer.storages.lazy_tensor import LazyTensorStorage
from replay_service.buffer.storages.list import ListStorage
from replay_service.buffer.writers.round_robin import RoundRobinWriter, TensorDictRoundRobinWriter
from tests.contracts.writer import WriterContract


class TestRoundRobinWriter(WriterContract):
    def make(self) -> RoundRobinWriter:
        return RoundRobinWriter()


class TestTensorDictRoundRobinWriter(WriterContract):
    def make(self) -> TensorDictRoundRobinWriter:
        return TensorDictRoundRobinWriter()


def _ring(capacity: int, *, track: bool = True, filled: int = 0) -> RoundRobinWriter:
    storage = LazyTensorStorage(capacity)
    if filled:
        storage.set(range(filled), torch.arange(filled))
    writer = RoundRobinWriter(track_generations=track)
    writer.register_storage(storage)
    return writer


@pytest.mark.parametrize("storage_class", [LazyTensorStorage, ListStorage])
@pytest.mark.parametrize("before", range(6))
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 10, 17])
def test_every_start_and_length(storage_class: type, before: int, rows: int) -> None:
    """Against the simplest ring there is: write one after the other."""
    storage, writer = storage_class(4), RoundRobinWriter(track_generations=True)
    writer.register_storage(storage)
    ring: dict[int, int] = {}
    stamps = dict.fromkeys(range(4), -1)
    count = 0
    for batch in (before, rows):
        slots = writer.extend(torch.arange(count, count + batch))
        expected = []
        for value in range(count, count + batch):
            slot = value % 4
            ring[slot] = value
            stamps[slot] += 1
            expected.append(slot)
        count += batch
        assert slots.tolist() == expected
        assert writer.cursor == count % 4
        assert writer.write_count == count
        assert len(storage) == len(ring)
        if not ring:  # nothing has told the layout yet
            continue
        assert [int(value) for value in storage.get(slice(None))] == [ring[slot] for slot in sorted(ring)]
        assert writer.generations_of(torch.arange(4)).tolist() == list(stamps.values())


def test_goes_on_behind_what_is_stored() -> None:
    assert _ring(4, filled=2).extend(torch.arange(3)).tolist() == [2, 3, 0]
    assert _ring(4, filled=4).extend(torch.arange(1)).tolist() == [0]


def test_one_stamp_per_write_not_per_call() -> None:
    writer = _ring(4)
    writer.extend(torch.arange(6))
    assert writer.generations_of(torch.arange(6)).tolist() == [1, 1, 0, 0, -1, -1]


def test_a_huge_batch_is_stamped_at_once() -> None:
    writer = _ring(2)
    writer.extend(torch.zeros(1_000_001))
    assert writer.generations_of(torch.arange(2)).tolist() == [500_000, 499_999]


def test_no_usable_stamp_is_minus_one() -> None:
    writer = _ring(4)
    writer.extend(torch.arange(2))
    assert writer.generations_of(torch.tensor([0, 2, 4, -1, 10**12])).tolist() == [0, -1, -1, -1, -1]


def test_records_that_nobody_stamped_have_none() -> None:
    assert _ring(4, filled=3).generations_of(torch.arange(4)).tolist() == [-1, -1, -1, -1]


def test_two_writers_on_one_storage_share_stamps() -> None:
    first = _ring(4)
    first.extend(torch.arange(4))
    held = first.generations_of(torch.arange(4))
    second = RoundRobinWriter(track_generations=True)
    second.register_storage(first.storage)
    second.extend(torch.arange(2))
    assert (first.generations_of(torch.arange(4)) != held).tolist() == [True, True, False, False]


def test_write_at_stamps_and_stays() -> None:
    writer = _ring(4)
    writer.extend(torch.arange(3))
    assert writer.write_at(torch.tensor([2, 0]), torch.tensor([20, 10])).tolist() == [2, 0]
    assert writer.storage.get(slice(None)).tolist() == [10, 1, 20]
    assert writer.generations_of(torch.arange(4)).tolist() == [1, 0, 1, -1]
    assert (writer.cursor, writer.write_count) == (3, 5)
    with pytest.raises(IndexError):
        writer.write_at(torch.tensor([3]), torch.tensor([0]))
    assert writer.generations_of(torch.arange(4)).tolist() == [1, 0, 1, -1]


def test_a_state_of_a_larger_ring_goes_on_inside_this_one() -> None:
    large, small = _ring(10), _ring(4)
    large.extend(torch.arange(4))
    small.storage.load_state_dict(large.storage.state_dict())
    small.load_state_dict(large.state_dict())
    assert small.extend(torch.arange(2)).tolist() == [0, 1]
    assert small.generations_of(torch.arange(5)).tolist() == [1, 1, 0, 0, -1]


def test_lanes_share_one_ring() -> None:
    storage = LazyTensorStorage(6, ndim=2)
    writer = RoundRobinWriter(track_generations=True)
    writer.register_storage(storage)
    index = writer.extend(TensorDict({"a": torch.arange(8).view(4, 2)}, [4, 2]))
    assert index.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1], [0, 0], [0, 1]]
    assert storage.column("a").tolist() == [[6, 7], [2, 3], [4, 5]]
    assert writer.generations_of(torch.arange(3)).tolist() == [1, 0, 0]
    assert writer.generations_of(tuple(index.unbind(1))).tolist() == [1, 1, 0, 0, 0, 0, 1, 1]
    assert writer.add(TensorDict({"a": torch.tensor([8, 9])}, [2])).tolist() == [[1, 0], [1, 1]]
    assert writer.extend(TensorDict({"a": torch.zeros(0, 2, dtype=torch.int64)}, [0, 2])).shape == (0, 2)
