"""StreamingSliceSampler: every new window once and in order, then draws."""

from __future__ import annotations

import pytest
import torch

from replay_service.buffer.replay_buffer import ReplayBuffer
from replay_service.buffer.samplers.streaming_slice import StreamingSliceSampler
from replay_service.buffer.storages.lazy_tensor import LazyTensorStorage
from replay_service.errors import EmptyBufferError
from tests.buffer.episode_rows import assert_runs, buffer_of, episode_rows, slices_in
from tests.contracts.sampler import SamplerContract


class TestStreamingSliceSampler(SamplerContract):
    def make(self, capacity: int) -> StreamingSliceSampler:
        return StreamingSliceSampler(slice_len=1)


def _starts(buffer: ReplayBuffer, size: int) -> list[tuple[int, int]]:
    slices = slices_in(buffer.sample(size))
    assert_runs(slices)
    return [run[0] for run in slices]


def test_windows_come_once_and_in_order() -> None:
    buffer = buffer_of(StreamingSliceSampler(slice_len=3), episode_rows([7, 2, 3]))
    assert _starts(buffer, 6) == [(0, 0), (0, 3)]
    buffer.extend(episode_rows([6], first=3))
    assert _starts(buffer, 6) == [(2, 0), (3, 0)]
    first, *drawn = (_starts(buffer, 6) for _ in range(30))
    assert first[0] == (3, 3)
    assert {start for starts in drawn for start in starts} >= {(0, 1), (2, 0), (3, 1)}


def test_a_window_goes_on_in_the_next_extend() -> None:
    buffer = buffer_of(StreamingSliceSampler(slice_len=4), capacity=50)
    rows = episode_rows([5, 4, 11])
    starts = []
    for start in range(0, 20, 2):
        buffer.extend(rows[start : start + 2])
        if buffer.can_sample(4):
            starts += _starts(buffer, 4)
    # One slice an extend, from the second on: a new window in the extend that completes it, else a draw.
    assert [starts[i] for i in (0, 3, 5, 7)] == [(0, 0), (1, 0), (2, 0), (2, 4)]


def test_what_was_overwritten_is_passed_over() -> None:
    buffer = buffer_of(StreamingSliceSampler(slice_len=3), episode_rows([3] * 6), capacity=18)
    assert _starts(buffer, 3) == [(0, 0)]
    buffer.extend(episode_rows([7], first=50))  # over episodes 0, 1 and the first step of 2
    assert _starts(buffer, 15) == [(3, 0), (4, 0), (5, 0), (50, 0), (50, 3)]


def test_a_window_that_an_end_cuts_is_passed_over() -> None:
    buffer = buffer_of(StreamingSliceSampler(slice_len=3), episode_rows([9]))
    assert _starts(buffer, 3) == [(0, 0)]
    buffer.set_at_(("next", "done"), torch.tensor([[True]]), torch.tensor([4]))
    assert _starts(buffer, 3) == [(0, 6)]


def test_lanes_wait_for_their_turn_alike() -> None:
    buffer = buffer_of(StreamingSliceSampler(slice_len=2), storage=LazyTensorStorage(20, ndim=2))
    buffer.extend(torch.stack([episode_rows([4]), episode_rows([3, 1], first=10)]))
    assert sorted(_starts(buffer, 6)) == [(0, 0), (0, 2), (10, 0)]


def test_state_round_trip_with_windows_that_wait() -> None:
    def make() -> ReplayBuffer:
        return buffer_of(StreamingSliceSampler(slice_len=3), capacity=30)

    first, second = make(), make()
    for number in range(8):
        first.extend(episode_rows([5], first=number))
        if number % 3 == 0:
            first.sample(3)
    second.load_state_dict(first.state_dict())
    for buffer in (first, second):
        buffer.extend(episode_rows([4, 4], first=20))
    for _ in range(10):
        assert _starts(first, 6) == _starts(second, 6)


def test_emptied_buffers_start_over() -> None:
    buffer = buffer_of(StreamingSliceSampler(slice_len=2), episode_rows([6]))
    buffer.sample(2)
    buffer.empty()
    buffer.extend(episode_rows([4], first=9))
    assert _starts(buffer, 4) == [(9, 0), (9, 2)]


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=r"slice_len \(0\)"):
        StreamingSliceSampler(slice_len=0)
    with pytest.raises(ValueError, match="pad_output"):
        StreamingSliceSampler(slice_len=3, pad_output=True)
    buffer = buffer_of(StreamingSliceSampler(slice_len=3), episode_rows([2]))
    with pytest.raises(EmptyBufferError, match="slice length"):
        buffer.sample(3)
