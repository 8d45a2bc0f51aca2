"""Rings beside each other. Names E… are rows of the semantics that are kept to."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from replay_service.episodic import ReplayBuffer, VectorReplayBuffer
from replay_service.errors import LayoutError
from tests.episodic.steps import rows


def three() -> VectorReplayBuffer:
    """What E54 adds."""
    buffer = VectorReplayBuffer(10, 3)
    buffer.add(rows([0, 100, 200]))
    buffer.add(rows([1, 201], [0, 1]), [0, 2])
    buffer.add(rows([202, 2], [0, 1]), [2, 0])
    return buffer


def test_e54_adding() -> None:  # E54
    buffer = VectorReplayBuffer(10, 3)
    assert (buffer.maxsize, buffer.subbuffer_edges.tolist(), buffer.buffer_num) == (12, [0, 4, 8, 12], 3)
    assert buffer.add(rows([0, 100, 200]))[0].tolist() == [0, 4, 8]
    added = buffer.add(rows([1, 201], [0, 1]), [0, 2])
    assert [column.tolist() for column in added] == [[1, 9], [0, 401], [0, 2], [0, 8]]
    added = buffer.add(rows([202, 2], [0, 1]), [2, 0])
    assert [column.tolist() for column in added] == [[10, 2], [0, 3], [0, 3], [10, 0]]
    assert len(buffer) == 7


def test_e55_order_and_neighbours() -> None:  # E55
    buffer = three()
    order = buffer.sample_indices(0)
    assert order.tolist() == [0, 1, 2, 4, 8, 9, 10]
    assert buffer[:].obs.tolist() == [0, 1, 2, 100, 200, 201, 202]
    assert buffer.unfinished_index().tolist() == [4, 10]
    assert buffer.last_index.tolist() == [2, 4, 10]
    assert buffer.prev(order).tolist() == [0, 0, 1, 4, 8, 8, 10]
    assert buffer.next(order).tolist() == [1, 2, 2, 4, 9, 9, 10]


def test_e57_refusals() -> None:  # E57
    buffer = three()
    with pytest.raises(NotImplementedError):
        buffer.update(ReplayBuffer(3))
    for wrong in (3, -1):
        with pytest.raises(IndexError, match="buffer_ids"):
            buffer.add(rows([0]), [wrong])
    assert len(buffer) == 7
    assert buffer.sample_indices(-1).size == 0
    # All steps, as with 0, but shuffled anew each time: the document's word, where the row has them in order.
    shuffled = [buffer.sample_indices(None).tolist() for _ in range(5)]
    assert all(sorted(slots) == buffer.sample_indices(0).tolist() for slots in shuffled)
    assert len(set(map(tuple, shuffled))) > 1


def test_rings_one_after_the_other_each_from_its_oldest_step() -> None:
    buffer = VectorReplayBuffer(6, 2)
    for number in range(4):
        buffer.add(rows([number, 100 + number])) if number < 2 else buffer.add(rows([number]), [0])
    assert buffer.sample_indices(0).tolist() == [1, 2, 0, 3, 4]
    assert buffer[:].obs.tolist() == [1, 2, 3, 100, 101]
    assert buffer.prev([1, 2, 0, 3, 4]).tolist() == [1, 1, 2, 3, 3]
    assert buffer.next([1, 2, 0, 3, 4]).tolist() == [2, 0, 0, 4, 4]


@pytest.mark.parametrize("count", [2, 4])
def test_e58_one_row_for_every_ring_and_nothing_advances(count: int) -> None:  # E58, done right
    buffer = VectorReplayBuffer(9, 3)
    with pytest.raises(LayoutError, match="row"):
        buffer.add(rows(list(range(count))))
    assert buffer.lengths.tolist() == [0, 0, 0]
    buffer.add(rows([1, 2, 3]))
    with pytest.raises(LayoutError):
        buffer.add(rows([1, 2], obs=np.zeros((2, 2))), [0, 1])
    assert buffer.lengths.tolist() == [1, 1, 1]


def test_e60_rings_of_one_length_are_drawn_apart() -> None:  # E60, done right
    buffer = VectorReplayBuffer(20, 2, random_seed=3)
    for number in range(10):
        buffer.add(rows([number, number]))
    slots = buffer.sample_indices(40)
    assert (np.diff(slots // 10) >= 0).all()
    first, second = slots[slots < 10], slots[slots >= 10] - 10
    assert first.tolist()[:8] != second.tolist()[:8]
    other = VectorReplayBuffer(20, 2, random_seed=4)
    for number in range(10):
        other.add(rows([number, number]))
    assert other.sample_indices(40).tolist() != slots.tolist()


def test_every_step_is_drawn_as_often() -> None:
    buffer = three()
    counts = np.bincount(buffer.sample_indices(70_000), minlength=12)
    assert (counts[[3, 5, 6, 7, 11]] == 0).all()
    assert np.abs(counts[[0, 1, 2, 4, 8, 9, 10]] / 10_000 - 1).max() < 0.1


def test_rows_that_hold_nothing_are_never_read() -> None:
    buffer = three()
    assert buffer[0:].obs.tolist() == buffer[0:99].obs.tolist() == [0, 1, 2, 100, 200, 201, 202]
    assert buffer[~buffer.done].obs.tolist() == [0, 1, 100, 200, 202]
    assert buffer[-1].obs == 202
    # The last of these are the document's slots two steps on: a ring of 7 steps would have them all.
    for index in (3, [4, 5], 12, (buffer.sample_indices(0) + 2) % len(buffer)):
        with pytest.raises(IndexError, match="stored step"):
            buffer[index]
        with pytest.raises(IndexError, match="stored step"):
            buffer.next(index)


def test_e61_a_copy_goes_on_as_the_original(tmp_path: Path) -> None:  # E61, done right
    buffer = VectorReplayBuffer(6, 2)
    for number in range(4):
        buffer.add(rows([number, 100 + number], [number == 1, number == 2]))
    buffer.save_hdf5(tmp_path / "file.hdf5")
    for copy in (pickle.loads(pickle.dumps(buffer)), VectorReplayBuffer.load_hdf5(tmp_path / "file.hdf5"), buffer):
        copy.add(rows([9, 109]))
        assert copy.unfinished_index().tolist() == [1, 4]
        assert copy.obs.tolist() == [3, 9, 2, 103, 109, 102]


def test_several_steps_of_one_ring_at_once() -> None:
    buffer = VectorReplayBuffer(8, 2)
    added = buffer.add(rows([0, 10, 1, 2, 11], [0, 0, 1, 0, 1]), [0, 1, 0, 0, 1])
    assert [column.tolist() for column in added] == [
        [0, 4, 1, 2, 5],
        [0, 0, 1, 0, 21],
        [0, 0, 2, 0, 2],
        [0, 4, 0, 2, 4],
    ]
    assert buffer[:].obs.tolist() == [0, 1, 2, 10, 11]


def test_entries_of_ones_own_are_kept_in_every_ring() -> None:  # E115, as E44 has it
    buffer = VectorReplayBuffer(6, 2)
    buffer.add(rows([0, 100]))
    buffer.add(rows([1, 101], foo=np.array([5.0, 6.0])))
    buffer.add(rows([102]), [1])
    assert buffer[:].foo.tolist() == [0, 5, 0, 6, 0]
    assert buffer[:].policy.is_empty()


def test_ending_the_episodes_of_some_rings() -> None:
    buffer = three()
    buffer.end_episodes([1])
    assert buffer.unfinished_index().tolist() == [10]
    assert buffer.add(rows([101], [1]), [1])[3].tolist() == [5]
    with pytest.raises(IndexError):
        buffer.end_episodes([3])


def test_slots_of_an_episode_stay_in_their_ring() -> None:
    buffer = VectorReplayBuffer(10, 2)
    assert buffer.get_buffer_indices(8, 7).tolist() == [8, 9, 5, 6]
    for start, stop in ((1, 6), (8, 1), (-1, 2), (9, 12)):
        with pytest.raises(ValueError, match="same ring"):
            buffer.get_buffer_indices(start, stop)


def test_one_ring_still_takes_rows() -> None:
    buffer = VectorReplayBuffer(4, 1)
    assert buffer.add(rows([5]))[0].tolist() == [0]


def test_dropnull_in_every_ring() -> None:
    buffer = three()
    buffer.set_array_at_key(np.array([1.0, np.nan, 3.0, 4.0, 5.0, 6.0, np.nan]), "ret", index=buffer.sample_indices(0))
    buffer.dropnull()
    assert buffer[:].obs.tolist() == [0, 2, 100, 200, 201]
    assert buffer.lengths.tolist() == [2, 1, 2]
    assert buffer.next(buffer.sample_indices(0)).tolist() == [0, 1, 4, 9, 9]


@pytest.mark.parametrize("settings", [(10, 0), (-1, 2), (10, True), (1.5, 2)])
def test_wrong_settings(settings: tuple[int, int]) -> None:
    with pytest.raises((TypeError, ValueError), match="must be"):
        VectorReplayBuffer(*settings)


def test_dropnull_leaves_episodes_of_other_rings_alone() -> None:
    buffer = VectorReplayBuffer(8, 2)
    for number in range(3):
        buffer.add(rows([number, 100 + number], rew=np.array([np.nan if number == 0 else 1.0, 1.0])))
    buffer.dropnull()
    buffer.add(rows([9, 109]))
    assert buffer.unfinished_index().tolist() == [2, 7]
    assert buffer.prev([0, 1, 2, 4, 5, 6, 7]).tolist() == [0, 0, 1, 4, 4, 5, 6]
