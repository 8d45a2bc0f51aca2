"""SliceSamplerWithoutReplacement: epochs in which no step comes twice, also while others write."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_service.buffer.replay_buffer import ReplayBuffer
from replay_service.buffer.samplers.slice_without_replacement import SliceSamplerWithoutReplacement
from replay_service.buffer.storages.lazy_tensor import LazyTensorStorage
from replay_service.errors import EmptyBufferError
from tests.buffer.episode_rows import assert_runs, buffer_of, chi_square, episode_rows, slices_in
from tests.contracts.sampler import SamplerContract

Slice = list[tuple[int, int]]


class TestSliceSamplerWithoutReplacement(SamplerContract):
    def make(self, capacity: int) -> SliceSamplerWithoutReplacement:
        return SliceSamplerWithoutReplacement(num_slices=1, strict_length=False)


def _epoch(buffer: ReplayBuffer, size: int) -> list[list[Slice]]:
    batches = [slices_in(buffer.sample(size))]
    while not buffer.sampler.ran_out:
        batches.append(slices_in(buffer.sample(size)))
    return batches


def test_every_episode_gives_one_slice_an_epoch() -> None:
    buffer = buffer_of(SliceSamplerWithoutReplacement(slice_len=3), episode_rows([5, 3, 2, 8, 4]))
    orders = set()
    for _ in range(10):
        batches = _epoch(buffer, 9)
        assert [len(batch) for batch in batches] == [3, 1]
        slices = [run for batch in batches for run in batch]
        assert_runs(slices)
        assert sorted(run[0][0] for run in slices) == [0, 1, 3, 4]
        orders.add(tuple(run[0][0] for run in slices))
    assert len(orders) > 3


def test_a_last_smaller_batch_may_be_left_out() -> None:
    sampler = SliceSamplerWithoutReplacement(slice_len=3, drop_last=True)
    buffer = buffer_of(sampler, episode_rows([5, 3, 8, 4]))
    assert [[len(batch) for batch in _epoch(buffer, 9)] for _ in range(3)] == [[3]] * 3
    assert buffer.can_sample(12)
    assert not buffer.can_sample(15)
    with pytest.raises(ValueError, match=r"drop_last \(True\).*5 slices; got 4 episodes"):
        buffer.sample(15)


def test_without_shuffling_the_oldest_comes_first() -> None:
    buffer = buffer_of(SliceSamplerWithoutReplacement(slice_len=2, shuffle=False), capacity=20)
    for number in range(7):
        buffer.extend(episode_rows([4], first=number))
    assert [run[0][0] for batch in _epoch(buffer, 4) for run in batch] == [2, 3, 4, 5, 6]


def test_starts_are_equally_likely() -> None:
    buffer = buffer_of(SliceSamplerWithoutReplacement(num_slices=2), episode_rows([11, 11]))
    starts = torch.stack([buffer.sample(8)["step"].view(2, 4)[:, 0] for _ in range(5000)])
    assert chi_square(torch.bincount(starts.flatten(), minlength=8).to(torch.float64)) < 29.9  # 7 degrees of freedom


def test_short_episodes_are_slices_as_a_whole() -> None:
    buffer = buffer_of(SliceSamplerWithoutReplacement(slice_len=5, strict_length=False), episode_rows([2, 9, 1]))
    assert sorted(len(run) for batch in _epoch(buffer, 10) for run in batch) == [1, 2, 5]


def test_an_epoch_is_over_what_was_there_when_it_began() -> None:
    buffer = buffer_of(SliceSamplerWithoutReplacement(slice_len=2), episode_rows([4] * 6))
    seen = [run[0][0] for run in slices_in(buffer.sample(4))]
    batches = 1
    while not buffer.sampler.ran_out:
        buffer.extend(episode_rows([4, 4], first=100 + batches))
        seen += [run[0][0] for run in slices_in(buffer.sample(4))]
        batches += 1
    assert sorted(seen) == [0, 1, 2, 3, 4, 5]
    assert max(run[0][0] for batch in _epoch(buffer, 4) for run in batch) >= 100


def test_what_was_overwritten_is_passed_over() -> None:
    buffer = buffer_of(SliceSamplerWithoutReplacement(slice_len=3, shuffle=False), episode_rows([4] * 5), capacity=20)
    assert slices_in(buffer.sample(3))[0][0][0] == 0
    buffer.extend(episode_rows([8], first=50))  # over episodes 0 and 1
    buffer.extend(episode_rows([1], first=60))  # and the first step of 2
    assert next(run[0] for batch in _epoch(buffer, 3) for run in batch) == (2, 1)
    assert buffer.sampler.ran_out
    assert {run[0][0] for batch in _epoch(buffer, 3) for run in batch} == {2, 3, 4, 50}


def test_when_all_that_was_left_is_gone_a_new_epoch_begins() -> None:
    buffer = buffer_of(SliceSamplerWithoutReplacement(slice_len=2), episode_rows([5] * 4), capacity=20)
    buffer.sample(2)
    assert not buffer.sampler.ran_out
    buffer.extend(episode_rows([10, 10], first=7))
    assert {run[0][0] for batch in _epoch(buffer, 2) for run in batch} == {7, 8}


def test_an_end_that_moved_cuts_what_is_left() -> None:
    buffer = buffer_of(SliceSamplerWithoutReplacement(slice_len=3, shuffle=False), episode_rows([3, 8]))
    buffer.sample(3)
    buffer.set_at_(("next", "done"), torch.tensor([[True]]), torch.tensor([6]))  # the fourth step of the second
    assert slices_in(buffer.sample(3))[0][0][1] in (4, 5)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_no_step_comes_twice_in_an_epoch_whatever_is_written_meanwhile(data: Any) -> None:
    lanes = data.draw(st.sampled_from([1, 2]))
    storage = LazyTensorStorage(24 * lanes, ndim=2 if lanes > 1 else 1)
    sampler = SliceSamplerWithoutReplacement(slice_len=3, strict_length=data.draw(st.booleans()))
    buffer = buffer_of(sampler, storage=storage)
    number, drawn, epoch, ran_out, wrote = 0, 0, 0, True, False
    seen: set[tuple[int, int]] = set()
    for _ in range(25):
        if drawn == 0 or data.draw(st.booleans()):
            lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
            number += 10
            wrote = True
            rows = [episode_rows(lengths, first=number + 1000 * lane) for lane in range(lanes)]
            buffer.extend(torch.stack(rows) if lanes > 1 else rows[0])  # type: ignore[arg-type]
        if not buffer.can_sample(6):
            continue
        slices = slices_in(buffer.sample(6))
        drawn += 1
        assert_runs(slices)
        steps = [step for run in slices for step in run]
        if sampler.epoch != epoch:
            # Without the last one having said that it is over, only where writes took all that was left.
            assert ran_out or wrote
            seen = set()
        assert len(steps) == len(set(steps))
        assert not seen & set(steps)
        seen |= set(steps)
        epoch, ran_out = sampler.epoch, sampler.ran_out
        wrote = False


def test_state_round_trip_within_an_epoch() -> None:
    def make() -> ReplayBuffer:
        return buffer_of(SliceSamplerWithoutReplacement(slice_len=3), capacity=40)

    first, second = make(), make()
    for number in range(12):
        first.extend(episode_rows([5], first=number))
    first.sample(6)
    second.load_state_dict(first.state_dict())
    for buffer in (first, second):
        buffer.extend(episode_rows([6], first=30))
    for _ in range(20):
        assert slices_in(first.sample(6)) == slices_in(second.sample(6))
        assert first.sampler.ran_out == second.sampler.ran_out


def test_nothing_is_long_enough() -> None:
    buffer = buffer_of(SliceSamplerWithoutReplacement(slice_len=4), episode_rows([3, 2]))
    assert not buffer.can_sample(4)
    with pytest.raises(EmptyBufferError, match=r"slice length \(4\)"):
        buffer.sample(4)


def test_iterating_ends_with_the_epoch() -> None:
    buffer = buffer_of(SliceSamplerWithoutReplacement(slice_len=2), episode_rows([4] * 5), batch_size=4)
    assert [len(batch) for batch in buffer] == [4, 4, 2]
