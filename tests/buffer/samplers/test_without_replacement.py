"""SamplerWithoutReplacement: epochs in which every record is drawn once."""

from __future__ import annotations

import pytest
import torch

from replay_service import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
from tests.contracts.sampler import SamplerContract
from tests.rows import stamped_rows


class TestSamplerWithoutReplacement(SamplerContract):
    def make(self, capacity: int) -> SamplerWithoutReplacement:
        return SamplerWithoutReplacement()


class TestInOrder(SamplerContract):
    def make(self, capacity: int) -> SamplerWithoutReplacement:
        return SamplerWithoutReplacement(drop_last=True, shuffle=False)


def _storage(rows: int) -> LazyTensorStorage:
    storage = LazyTensorStorage(100)
    storage.set(range(rows), torch.arange(rows))
    storage.generator = torch.Generator().manual_seed(0)
    return storage


def _epoch(sampler: SamplerWithoutReplacement, storage: LazyTensorStorage, batch_size: int = 4) -> list[list[int]]:
    batches = []
    while True:
        batches.append(sampler.sample(storage, batch_size)[0].tolist())
        if sampler.ran_out:
            return batches


def test_an_epoch_draws_every_record_once() -> None:
    storage, sampler = _storage(10), SamplerWithoutReplacement()
    epochs = [_epoch(sampler, storage) for _ in range(3)]
    assert all([len(batch) for batch in epoch] == [4, 4, 2] for epoch in epochs)
    flat = [[record for batch in epoch for record in batch] for epoch in epochs]
    assert all(sorted(records) == list(range(10)) for records in flat)
    assert flat[0] != flat[1] != flat[2]


def test_the_last_smaller_batch_may_be_left_out() -> None:
    storage, sampler = _storage(10), SamplerWithoutReplacement(drop_last=True, shuffle=False)
    for _ in range(2):
        assert _epoch(sampler, storage) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert not sampler.can_sample(storage, 11)
    with pytest.raises(ValueError, match=r"batch_size \(11\) must not be above .* 10 records"):
        sampler.sample(storage, 11)
    assert sampler.sample(storage, 10)[0].tolist() == list(range(10))


def test_a_batch_larger_than_the_storage_is_all_there_is() -> None:
    sampler = SamplerWithoutReplacement()
    assert sorted(sampler.sample(_storage(5), 64)[0].tolist()) == list(range(5))
    assert sampler.ran_out


def test_records_appended_during_an_epoch_wait_for_the_next() -> None:
    storage, sampler = _storage(10), SamplerWithoutReplacement()
    drawn = []
    while not sampler.ran_out:
        drawn += sampler.sample(storage, 3)[0].tolist()
        size = len(storage)
        storage.set(range(size, size + 5), torch.arange(5))
        sampler.extend(torch.arange(size, size + 5))
    assert sorted(drawn) == list(range(10))
    size = len(storage)
    assert sorted(record for batch in _epoch(sampler, storage) for record in batch) == list(range(size))


def test_orders_are_uniform() -> None:
    storage, sampler = _storage(3), SamplerWithoutReplacement()
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(6000):
        order = tuple(sampler.sample(storage, 3)[0].tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 25.7  # 5 degrees of freedom, 1 in 10,000


def test_an_epoch_can_be_ended() -> None:
    storage, sampler = _storage(10), SamplerWithoutReplacement(shuffle=False)
    sampler.sample(storage, 4)
    sampler.ran_out = True
    assert sampler.ran_out
    assert sampler.sample(storage, 4)[0].tolist() == [0, 1, 2, 3]
    assert not sampler.ran_out


def test_a_storage_that_somebody_else_emptied() -> None:
    storage, sampler = _storage(10), SamplerWithoutReplacement()
    sampler.sample(storage, 4)
    storage.empty()
    storage.set(range(2), torch.arange(2))
    assert sorted(sampler.sample(storage, 4)[0].tolist()) == [0, 1]


def test_what_is_drawn_may_be_changed() -> None:
    storage, sampler = _storage(6), SamplerWithoutReplacement(shuffle=False)
    sampler.sample(storage, 3)[0].fill_(5)
    assert sampler.sample(storage, 3)[0].tolist() == [3, 4, 5]


def test_a_buffer_is_iterated_until_the_epoch_is_over() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), sampler=SamplerWithoutReplacement(), batch_size=4)
    buffer.extend(stamped_rows(10))
    for _ in range(2):
        assert sorted(torch.cat([batch["action"] for batch in buffer]).tolist()) == list(range(10))
    buffer.empty()
    buffer.add(stamped_rows(1)[0])
    assert [batch["action"].tolist() for batch in buffer] == [[0]]


def test_a_state_is_a_copy() -> None:
    storage, sampler = _storage(9), SamplerWithoutReplacement()
    sampler.sample(storage, 4)
    state = sampler.state_dict()
    other = SamplerWithoutReplacement()
    other.load_state_dict(state)
    state["order"].zero_()
    assert torch.equal(sampler.sample(storage, 4)[0], other.sample(storage, 4)[0])
