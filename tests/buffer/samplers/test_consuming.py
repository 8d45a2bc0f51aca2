"""ConsumingSampler: records are drawn a given number of times, and their slots handed out again."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from replay_service.buffer.samplers.consuming import ConsumingSampler
from replay_service.buffer.storages.lazy_tensor import LazyTensorStorage
from replay_service.errors import EmptyBufferError
from tests.contracts.sampler import SamplerContract


class TestConsumingSampler(SamplerContract):
    def make(self, capacity: int) -> ConsumingSampler:
        return ConsumingSampler(100)


def _pair(rows: int, times: int = 1) -> tuple[LazyTensorStorage, ConsumingSampler]:
    storage = LazyTensorStorage(1000)
    storage.generator = torch.Generator().manual_seed(0)
    storage.set(range(rows), torch.arange(rows))
    sampler = ConsumingSampler(times)
    sampler.extend(torch.arange(rows))
    return storage, sampler


@pytest.mark.parametrize("times", [1, 2, 5])
def test_every_record_is_drawn_that_often(times: int) -> None:
    storage, sampler = _pair(50, times)
    counts: Counter[int] = Counter()
    while not sampler.ran_out:
        drawn = sampler.sample(storage, 7)[0].tolist()
        assert len(set(drawn)) == len(drawn)
        counts.update(drawn)
        assert sampler.remaining(storage) == sum(1 for record in range(50) if counts[record] < times)
    assert counts == dict.fromkeys(range(50), times)
    assert not sampler.can_sample(storage, 1)
    with pytest.raises(EmptyBufferError, match=f"drawn less than {times} times"):
        sampler.sample(storage, 1)


def test_draws_are_uniform() -> None:
    counts = torch.zeros(40, dtype=torch.int64)
    storage, sampler = _pair(40, 1_000_000)
    for _ in range(10_000):  # small batches, and ones of more than half
        counts[sampler.sample(storage, 4)[0]] += 1
        counts[sampler.sample(storage, 36)[0]] += 1
    assert int(counts.sum()) == 400_000
    # Without replacement within a batch, counts vary less than independent draws would.
    assert float(((counts - 10_000) ** 2 / 10_000).sum()) < 72  # 39 degrees of freedom, 1 in 1,000


def test_used_up_slots_are_handed_out_once_in_order() -> None:
    storage, sampler = _pair(10)
    first, second = sampler.sample(storage, 3)[0], sampler.sample(storage, 4)[0]
    assert sampler.freed(5).tolist() == first.tolist() + second.tolist()[:2]
    assert sampler.freed(5).tolist() == second.tolist()[2:]
    assert sampler.freed(5).tolist() == []


def test_new_records_in_old_slots_are_drawn_again() -> None:
    storage, sampler = _pair(6)
    drawn = sampler.sample(storage, 6)[0]
    sampler.extend(drawn[:2])
    assert sampler.remaining(storage) == 2
    assert not sampler.ran_out
    assert sampler.freed(10).tolist() == drawn[2:].tolist(), "a slot with a new record is not free"
    assert set(sampler.sample(storage, 6)[0].tolist()) == set(drawn[:2].tolist())
    assert set(sampler.freed(10).tolist()) == set(drawn[:2].tolist())


def test_changing_a_record_does_not_bring_it_back() -> None:
    storage, sampler = _pair(3)
    drawn = sampler.sample(storage, 2)[0]
    sampler.mark_update(drawn, storage=storage)
    assert sampler.remaining(storage) == 1


def test_free_slots_are_bounded_by_the_storage() -> None:
    storage, sampler = _pair(20)
    for _ in range(50):  # nobody asks for free slots
        sampler.sample(storage, 20)
        sampler.extend(torch.arange(20))
    sampler.sample(storage, 20)
    assert len(sampler.state_dict()["freed"]) == 20
    assert sorted(sampler.freed(100).tolist()) == list(range(20))


def test_a_storage_that_somebody_else_emptied() -> None:
    storage, sampler = _pair(20)
    sampler.sample(storage, 10)
    storage.empty()
    storage.set(range(4), torch.arange(4))
    left = set()
    while sampler.remaining(storage) and not sampler.ran_out:
        try:
            left |= set(sampler.sample(storage, 8)[0].tolist())
        except EmptyBufferError:
            break
    assert left <= set(range(4))
    assert all(slot < 4 for slot in sampler.freed(100).tolist())


def test_a_state_is_a_copy() -> None:
    storage, sampler = _pair(30, 2)
    sampler.sample(storage, 20)
    sampler.sample(storage, 20)
    state = sampler.state_dict()
    other = ConsumingSampler()
    other.load_state_dict(state)
    for tensor in ("counts", "live", "freed"):
        state[tensor].zero_()
    assert other.max_sample_count == 2
    assert other.remaining(storage) == sampler.remaining(storage)
    draws = []
    for one in (sampler, other):
        storage.generator = torch.Generator().manual_seed(5)
        draws.append([one.sample(storage, 4)[0].tolist() for _ in range(4)] + [one.freed(100).tolist()])
    assert draws[0] == draws[1]


def test_a_wrong_state_changes_nothing() -> None:
    storage, sampler = _pair(5)
    state = sampler.state_dict()
    for name, wrong in (("live", torch.tensor([7])), ("freed", torch.tensor([-1])), ("max_sample_count", 0)):
        with pytest.raises(ValueError, match="must"):
            sampler.load_state_dict({**state, name: wrong})
    assert sampler.remaining(storage) == 5


def test_wrong_counts_are_refused() -> None:
    for wrong, error in ((0, ValueError), (True, TypeError), (1.5, TypeError)):
        with pytest.raises(error, match="max_sample_count"):
            ConsumingSampler(wrong)  # type: ignore[arg-type]
