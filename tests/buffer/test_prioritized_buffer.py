"""PrioritizedReplayBuffer: a buffer that makes its own sampler of priorities."""

from __future__ import annotations

import pytest
import torch

from replay_service import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    PriorityError,
    RoundRobinWriter,
    TensorDictReplayBuffer,
)
from tests.rows import stamped_rows


def test_it_draws_by_priority_and_gives_weights() -> None:
    buffer = PrioritizedReplayBuffer(alpha=0.7, beta=1.1, storage=ListStorage(10), batch_size=5)
    buffer.extend(list(range(10)))
    buffer.update_priority(torch.arange(10), torch.tensor([0.0] * 9 + [1000.0]))
    sample, info = buffer.sample(100, return_info=True)
    assert set(sample) == {9}
    assert set(info["index"].tolist()) == {9}
    assert info["priority_weight"].shape == (100,)
    assert isinstance(buffer.prioritized_sampler, PrioritizedSampler)


def test_its_sampler_has_room_for_the_storage() -> None:
    buffer = PrioritizedReplayBuffer(alpha=0.7, beta=0.9, storage=lambda: LazyTensorStorage(33), dtype=torch.float64)
    assert buffer.sampler.max_size == 33
    buffer.extend(torch.arange(3))
    assert buffer.sample(2, return_info=True)[1]["priority_weight"].dtype == torch.float64
    assert PrioritizedReplayBuffer(alpha=0.7, beta=0.9).sampler.max_size == 1000


def test_another_sampler_may_be_given() -> None:
    sampler = PrioritizedSampler(10, 0.1, 0.2)
    assert PrioritizedReplayBuffer(alpha=0.7, beta=0.9, sampler=sampler).prioritized_sampler is sampler
    with pytest.raises(ValueError, match=r"sampler_device \(cpu\) must be left out"):
        PrioritizedReplayBuffer(alpha=0.7, beta=0.9, sampler=sampler, sampler_device="cpu")


def test_a_priority_does_not_reach_the_successor_of_its_record() -> None:
    buffer = PrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, eps=0.0, storage=LazyTensorStorage(4), writer=RoundRobinWriter(track_generations=True)
    )
    buffer.extend(torch.arange(4))
    _, info = buffer.sample(64, return_info=True)
    index, stamp = info["index"], info["index_generation"]
    buffer.extend(torch.tensor([4, 5]))  # overwrites slots 0 and 1
    result = buffer.update_priority(index, torch.full((64,), 9.0), generation=stamp)
    assert torch.equal(result.updated, index >= 2)
    assert buffer.sampler.priorities().tolist() == [1, 1, 9, 9]
    assert buffer.update_priority(index, 5.0).updated_count == 64


def test_refused_updates_change_nothing() -> None:
    buffer = PrioritizedReplayBuffer(alpha=1.0, beta=1.0, storage=LazyTensorStorage(4))
    buffer.extend(torch.arange(3))
    with pytest.raises(PriorityError):
        buffer.update_priority([0, 1], [5.0, float("nan")])
    with pytest.raises(IndexError):
        buffer.update_priority([0, 3], [5.0, 5.0])  # beyond the filled part
    with pytest.raises(ValueError, match="one entry per index"):
        buffer.update_priority([0, 1, 2], [5.0, 5.0])
    assert buffer.sampler.priorities().tolist() == [1, 1, 1]


def test_empty_then_add() -> None:
    buffer = PrioritizedReplayBuffer(alpha=1.0, beta=1.0, storage=LazyTensorStorage(4))
    buffer.extend(torch.arange(4))
    buffer.update_priority(torch.arange(4), [1.0, 2.0, 3.0, 4.0])
    buffer.empty()
    assert not buffer.can_sample(1)
    buffer.add(torch.tensor(7))
    assert buffer.sample(3).tolist() == [7, 7, 7]
    assert buffer.sampler.priorities().tolist() == [1]


def test_records_written_in_place_are_new_ones() -> None:
    buffer = PrioritizedReplayBuffer(alpha=1.0, beta=1.0, storage=LazyTensorStorage(4))
    buffer.extend(torch.arange(4))
    buffer.update_priority(torch.arange(4), [1.0, 2.0, 3.0, 4.0])
    buffer[0] = torch.tensor(9)
    buffer.storage[1:3] = torch.tensor([8, 7])
    assert buffer.sampler.priorities().tolist() == [4, 4, 4, 4]


def test_more_records_than_room() -> None:
    buffer = PrioritizedReplayBuffer(alpha=1.0, beta=1.0, storage=LazyTensorStorage(4))
    buffer.extend(torch.arange(11))
    assert buffer.sampler.priorities().tolist() == [1, 1, 1, 1]
    assert set(buffer.sample(100).tolist()) == {7, 8, 9, 10}


def test_a_sampler_that_comes_later_knows_all_records() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(16), batch_size=8)
    buffer.extend(stamped_rows(10))
    buffer.set_sampler(PrioritizedSampler(16, 0.6, 0.4))
    buffer.update_priority([3], 1e9)
    assert 3 in buffer.sample()["index"].tolist()


def test_lanes_have_priorities_of_their_own() -> None:
    buffer = PrioritizedReplayBuffer(alpha=1.0, beta=1.0, eps=0.0, storage=LazyTensorStorage(9, ndim=2), dim_extend=0)
    index = buffer.extend(torch.arange(10).view(5, 2))
    buffer.update_priority(index, torch.where(index[:, 1] == 1, 1.0, 0.0)[: index.shape[0]])
    sample, info = buffer.sample(200, return_info=True)
    assert set(sample.tolist()) == {1, 3, 5, 7, 9}
    assert set(info["index"][1].tolist()) == {1}


def test_the_next_hundred_draws_after_a_load_are_the_same() -> None:
    def make() -> PrioritizedReplayBuffer:
        return PrioritizedReplayBuffer(alpha=0.6, beta=0.4, storage=LazyTensorStorage(64), batch_size=16)

    buffer = make()
    buffer.extend(torch.arange(100))
    buffer.update_priority(torch.arange(64), torch.rand(64, generator=torch.Generator().manual_seed(2)))
    buffer.sample()
    other = make()
    other.load_state_dict(buffer.state_dict())
    for step in range(100):
        (left, left_info), (right, right_info) = buffer.sample(return_info=True), other.sample(return_info=True)
        assert torch.equal(left, right)
        assert torch.equal(left_info["priority_weight"], right_info["priority_weight"])
        for one in (buffer, other):
            one.update_priority(left_info["index"], torch.full((16,), 1.0 + step))
