"""Caches in front of a ring. Names E… are rows of the semantics that are kept to."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from replay_service.episodic import CachedReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
from replay_service.errors import LayoutError
from tests.episodic.steps import rows, tr


def test_e73_episodes_move_to_the_main_ring() -> None:  # E73
    buffer = CachedReplayBuffer(ReplayBuffer(6), 2, 3)
    steps = [([1, 101], [0, 0]), ([2, 102], [1, 0]), ([3, 103], [0, 1]), ([4, 104], [0, 0]), ([5, 105], [0, 1])]
    added = [[column.tolist() for column in buffer.add(rows(*step))] for step in steps]
    assert added[0] == [[6, 9], [0, 0], [0, 0], [6, 9]]
    assert added[1] == [[1, 10], [3, 0], [2, 0], [0, 9]]
    assert added[2] == [[6, 4], [0, 306], [0, 3], [6, 2]]
    assert added[4] == [[8, 0], [0, 209], [0, 2], [6, 5]]
    assert buffer.sample_indices(0).tolist() == [1, 2, 3, 4, 5, 0, 6, 7, 8]
    assert buffer[:].obs.tolist() == [2, 101, 102, 103, 104, 105, 3, 4, 5]
    assert buffer.unfinished_index().tolist() == [8]
    assert (buffer.maxsize, buffer.buffer_num, buffer.subbuffer_edges.tolist()) == (12, 2, [0, 6, 9, 12])


def test_e75_of_a_long_episode_the_last_steps_arrive() -> None:  # E75
    buffer = CachedReplayBuffer(ReplayBuffer(6), 1, 3)
    for number in range(4):
        buffer.add(rows([number]))
    assert [column.tolist()[0] for column in buffer.add(rows([4], [1]))] == [2, 10, 5, 0]
    assert buffer[:].obs.tolist() == [2, 3, 4]


def test_a_main_ring_without_room() -> None:
    buffer = CachedReplayBuffer(ReplayBuffer(0), 1, 3)
    buffer.add(rows([0]))
    assert [column.tolist()[0] for column in buffer.add(rows([1], [1]))] == [-1, 1, 2, -1]
    assert len(buffer) == 0
    assert buffer.add(rows([2]))[0].tolist() == [0]


def test_several_steps_of_one_cache_at_once() -> None:
    buffer = CachedReplayBuffer(ReplayBuffer(6), 2, 3)
    added = buffer.add(rows([0, 1, 100, 2, 3], [0, 1, 0, 0, 1]), [0, 0, 1, 0, 0])
    assert [column.tolist() for column in added] == [[6, 1, 9, 6, 3], [0, 1, 0, 0, 5], [0, 2, 0, 0, 2], [6, 0, 9, 6, 2]]
    assert buffer[:].obs.tolist() == [0, 1, 2, 3, 100]


def test_draws_cover_main_and_caches() -> None:
    buffer = CachedReplayBuffer(ReplayBuffer(6, stack_num=2), 2, 3)
    buffer.add(rows([0, 10]))
    buffer.add(rows([1, 11], [1, 0]))
    assert set(buffer.sample_indices(100).tolist()) == {0, 1, 9, 10}
    assert buffer[[1, 10]].obs.tolist() == [[0, 1], [10, 11]]
    assert buffer.prev([0, 1, 9, 10]).tolist() == [0, 0, 9, 9]


def test_an_episode_that_was_given_up_moves_too() -> None:
    buffer = CachedReplayBuffer(ReplayBuffer(6), 2, 3)
    buffer.add(rows([0, 10]))
    buffer.end_episodes([1])
    assert buffer[:].obs.tolist() == [10, 0]
    assert buffer.truncated[0]
    assert buffer.unfinished_index().tolist() == [6]
    buffer.reset()
    assert len(buffer) == 0


def test_a_copy_goes_on_as_the_original() -> None:
    buffer = CachedReplayBuffer(ReplayBuffer(6, stack_num=2), 2, 3)
    buffer.add(rows([0, 10], [1, 0]))
    copy = pickle.loads(pickle.dumps(buffer))
    for both in (buffer, copy):
        both.add(rows([1, 11], [0, 1]))
    assert copy[:].obs.tolist() == buffer[:].obs.tolist() == [[0, 0], [10, 10], [10, 11], [1, 1]]


def test_refusals() -> None:
    with pytest.raises(TypeError, match="main_buffer"):
        CachedReplayBuffer(PrioritizedReplayBuffer(6, 0.5, 0.5), 2, 3)
    main = ReplayBuffer(6)
    main.add(tr(0))
    with pytest.raises(ValueError, match="must be empty"):
        CachedReplayBuffer(main, 2, 3)
    for wrong in ((0, 3), (2, 0)):
        with pytest.raises(ValueError, match="positive"):
            CachedReplayBuffer(ReplayBuffer(6), *wrong)
    buffer = CachedReplayBuffer(ReplayBuffer(6), 2, 3)
    with pytest.raises(IndexError):
        buffer.add(rows([0]), [2])
    with pytest.raises(LayoutError):
        buffer.add(rows([0]))
    with pytest.raises(NotImplementedError):
        buffer.update(main)
    assert len(buffer) == 0


def test_main_ring_is_in_the_order_of_time() -> None:
    buffer = CachedReplayBuffer(ReplayBuffer(20), 1, 4)
    for number in range(9):
        buffer.add(rows([number], [number in (5, 8)]))
    assert buffer[:].obs.tolist() == [2, 3, 4, 5, 6, 7, 8]
    assert buffer.prev(np.arange(7)).tolist() == [0, 0, 1, 2, 4, 4, 5]
