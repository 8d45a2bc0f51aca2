"""Reading one ring of steps. Names E… are rows of the semantics that are kept to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from replay_service.episodic import Batch, ReplayBuffer
from replay_service.errors import EmptyBufferError
from tests.episodic.steps import filled, tr


def wrapped() -> ReplayBuffer:
    """E29: size 5, steps 0 to 7, ends at 2 and 6."""
    return filled(5, 8, (2, 6))


def test_e31_what_indices_name() -> None:  # E31
    buffer = wrapped()
    assert buffer[:].obs.tolist() == buffer[slice(None)].obs.tolist() == [3, 4, 5, 6, 7]
    assert buffer[0:].obs.tolist() == [5, 6, 7, 3, 4]
    assert buffer[0:2].obs.tolist() == [5, 6]
    assert buffer[::2].obs.tolist() == [5, 7, 4]
    assert buffer[-1].obs == 4
    assert buffer[buffer.done].obs.tolist() == [6]
    assert [buffer[slot].obs for slot in range(5)] == buffer.obs.tolist()
    assert buffer[[[0, 1], [2, 3]]].obs.tolist() == [[5, 6], [7, 3]]
    assert buffer[torch.tensor([4, 0])].obs.tolist() == [4, 5]


def test_e32_slots_of_an_episode() -> None:  # E32
    buffer = wrapped()
    assert buffer.get_buffer_indices(4, 2).tolist() == [4, 0, 1]
    assert buffer.get_buffer_indices(3, 5).tolist() == [3, 4]
    assert buffer.subbuffer_edges.tolist() == [0, 5]
    with pytest.raises(ValueError, match="same ring"):
        buffer.get_buffer_indices(0, 6)


def test_e33_an_episode_that_goes_on() -> None:  # E33
    buffer = filled(10, 4)
    assert buffer.prev(np.arange(4)).tolist() == [0, 0, 1, 2]
    assert buffer.next(np.arange(4)).tolist() == [1, 2, 3, 3]
    assert (buffer.prev(2), buffer.next(2), buffer.next(-1)) == (1, 3, 3)
    assert buffer.prev([[0, 1], [2, 3]]).tolist() == [[0, 0], [1, 2]]
    assert buffer.unfinished_index().tolist() == [3]
    assert filled(10, 4, (3,)).unfinished_index().tolist() == []
    assert buffer[0:10].obs.tolist() == [0, 1, 2, 3]
    assert buffer[-1].obs == 3
    assert buffer[~buffer.done].obs.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("index", [4, 9, 10, -5, [0, 4]])
def test_what_holds_no_step_is_never_read(index: Any) -> None:
    buffer = filled(10, 4)
    for read in (buffer.__getitem__, buffer.prev, buffer.next, lambda at: buffer.get(at, "obs")):
        with pytest.raises(IndexError, match="stored step"):
            read(index)


def test_none_draws_every_step_once() -> None:  # [Q] of section 2
    buffer = filled(10, 14)
    first, second = (buffer.sample_indices(None).tolist() for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_e35_draws_follow_the_seed() -> None:  # E35
    assert filled(10, 10).sample_indices(6).tolist() == [6, 3, 7, 4, 6, 9]
    assert filled(10, 10, random_seed=7).sample_indices(6).tolist() == [4, 9, 6, 3, 3, 7]
    state = np.random.get_state()[1].copy()
    fresh = [filled(10, 10) for _ in range(2)]
    assert fresh[0].sample(20)[1].tolist() == fresh[1].sample(20)[1].tolist()
    assert np.array_equal(np.random.get_state()[1], state)  # NumPy's own generator is left alone
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    drawn = [filled(10, 10, random_seed=generator).sample_indices(20).tolist() for generator in generators]
    assert drawn[0] == drawn[1]


def test_e38_e39_stacked_frames() -> None:  # E38 E39
    buffer = filled(6, 5, (2,), stack_num=3)
    batch = buffer[np.arange(5)]
    assert batch.obs.tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [3, 3, 3], [3, 3, 4]]
    assert batch.obs_next.tolist() == [[1, 1, 1], [1, 1, 2], [1, 2, 3], [4, 4, 4], [4, 4, 5]]
    assert batch.act.tolist() == batch.rew.tolist() == [0, 1, 2, 3, 4]
    assert batch.terminated.tolist() == batch.done.tolist() == [False, False, True, False, False]
    assert batch.truncated.tolist() == [False] * 5
    assert buffer.get(4, "obs").tolist() == [3, 3, 4]
    assert buffer.get([4, 1], "obs", stack_num=2).tolist() == [[3, 4], [0, 1]]
    assert buffer.get(np.arange(5), "obs", stack_num=1).tolist() == [0, 1, 2, 3, 4]
    assert buffer.get(np.arange(5), "rew")[2].tolist() == [0, 1, 2]
    assert buffer.get(0, "nothing", 7) == 7
    with pytest.raises(KeyError, match="nothing"):
        buffer.get(0, "nothing")
    assert buffer[np.array([[0, 4]])].obs.tolist() == [[[0, 0, 0], [3, 3, 4]]]


def test_e40_info_and_policy_are_stacked_too() -> None:  # E40
    buffer = ReplayBuffer(5, stack_num=2)
    for number in range(3):
        buffer.add(tr(number, info={"t": number}, policy=Batch(p=number)))
    assert buffer[:].info.t.tolist() == buffer[:].policy.p.tolist() == [[0, 0], [0, 1], [1, 2]]


def test_e41_next_observations_that_are_not_stored() -> None:  # E41
    buffer = filled(4, 6, (3,), ignore_obs_next=True)
    assert buffer[:].obs.tolist() == [2, 3, 4, 5]
    assert buffer[:].obs_next.tolist() == [3, 3, 5, 5]
    assert buffer.obs.tolist() == [4, 5, 2, 3]


def test_e43_only_whole_stacks() -> None:  # E43
    buffer = ReplayBuffer(9, stack_num=4, ignore_obs_next=True, sample_avail=True)
    for number in range(16):
        buffer.add(tr(number, number % 5 == 0))
    assert buffer.sample_indices(0).tolist() == [1, 5, 6]
    assert set(buffer.sample_indices(200).tolist()) == {1, 5, 6}
    assert sorted(buffer.sample_indices(None).tolist()) == [1, 5, 6]
    assert buffer[:].obs.tolist() == [[7, 8, 9, 10], [11, 12, 13, 14], [12, 13, 14, 15]]
    two = ReplayBuffer(9, stack_num=2, sample_avail=True)
    for number in range(16):
        two.add(tr(number, number % 5 == 0))
    assert two.sample_indices(0).tolist() == [8, 0, 1, 3, 4, 5, 6]


def test_no_whole_stack_is_an_error_and_not_a_wait() -> None:
    with pytest.raises(EmptyBufferError, match="sample_avail"):
        filled(9, 3, stack_num=4, sample_avail=True).sample(2)


def documented() -> ReplayBuffer:
    """E26: size 9, stack 4, obs_next not stored, steps 0 to 15, ends at multiples of 5."""
    buffer = ReplayBuffer(9, stack_num=4, ignore_obs_next=True)
    for number in range(16):
        buffer.add(tr(number, number % 5 == 0, obs={"id": number}, obs_next={"id": number + 1}))
    return buffer


def test_e27_stacks_of_the_document() -> None:  # E27
    buffer = documented()
    expected = [[7, 7, 8, 9], [7, 8, 9, 10], [11] * 4, [11, 11, 11, 12], [11, 11, 12, 13], [11, 12, 13, 14]]
    expected += [[12, 13, 14, 15], [7] * 4, [7, 7, 7, 8]]
    assert buffer.get(np.arange(9), "obs").id.tolist() == expected
    assert buffer[np.arange(9)].obs.id.tolist() == expected


def test_e28_stacks_of_next_observations_in_the_order_of_time() -> None:  # E28
    buffer = documented()
    expected = [[7, 7, 7, 8], [7, 7, 8, 9], [7, 8, 9, 10], [7, 8, 9, 10], [11, 11, 11, 12], [11, 11, 12, 13]]
    expected += [[11, 12, 13, 14], [12, 13, 14, 15], [12, 13, 14, 15]]
    assert buffer[:].obs_next.id.tolist() == expected
    assert buffer[[7, 8, 0, 1, 2, 3, 4, 5, 6]].obs_next.id.tolist() == expected
    assert buffer[:].act.tolist() == [7, 8, 9, 10, 11, 12, 13, 14, 15]


def test_a_row_is_the_rows_of_the_columns_unless_stacked() -> None:
    plain, stacked = filled(4, 6), filled(4, 6, stack_num=2)
    assert plain[2].obs == plain.obs[2] == 2
    assert stacked[2].obs.tolist() == [2, 2]
    assert stacked[3].obs.tolist() == [2, 3]
    assert stacked.obs[3] == 3


def test_the_axis_of_frames_comes_behind_those_of_the_index() -> None:
    buffer = ReplayBuffer(6, stack_num=3)
    for number in range(4):
        buffer.add(tr(number, number == 1, obs=np.full((2, 5), number), info={"t": number}, foo=float(number)))
    batch = buffer[[[0, 1], [2, 3]]]
    assert (batch.obs.shape, batch.obs_next.shape, batch.info.t.shape) == ((2, 2, 3, 2, 5), (2, 2, 3), (2, 2, 3))
    assert batch.obs[:, :, :, 0, 0].tolist() == [[[0, 0, 0], [0, 0, 1]], [[2, 2, 2], [2, 2, 3]]]
    for name in ("act", "rew", "terminated", "truncated", "done", "foo"):
        assert batch[name].shape == (2, 2)
    assert buffer[1].obs.shape == (3, 2, 5)


def test_history_that_was_overwritten_is_the_oldest_that_is_left() -> None:
    buffer = filled(4, 7, stack_num=3)
    assert buffer[:].obs.tolist() == [[3, 3, 3], [3, 3, 4], [3, 4, 5], [4, 5, 6]]


def test_every_step_is_drawn_as_often_with_replacement() -> None:
    buffer = filled(10, 14)
    assert len(set(buffer.sample_indices(12).tolist())) < 12
    shares = np.bincount(buffer.sample_indices(40_000), minlength=10) / 40_000
    assert np.abs(shares - 0.1).max() < 0.01


def test_a_sample_is_the_steps_at_the_slots_drawn() -> None:
    for buffer in (filled(5, 8, (2, 6)), filled(5, 8, (2, 6), stack_num=3, ignore_obs_next=True)):
        for batch_size in (7, 0, None):
            batch, slots = buffer.sample(batch_size)
            assert batch == buffer[slots]
            assert slots.dtype == np.int64


def test_nulls_are_looked_for_in_what_is_stored() -> None:
    buffer = ReplayBuffer(3)
    buffer.add(tr(0, info={"s": "x"}))  # the other slots hold None
    assert not buffer.hasnull()
    assert buffer.isnull().info.s.tolist() == [False]
    for number in (1, 2, 3):
        buffer.add(tr(number, rew=np.nan if number == 1 else 0.0, info={"s": "x"}))
    assert buffer.hasnull()
    assert buffer.isnull().rew.tolist() == [True, False, False]
    buffer.add(tr(4, info={"s": "x"}))
    assert not buffer.hasnull()


def test_hasnull_looks_at_what_all_gives() -> None:
    buffer = ReplayBuffer(5, stack_num=2, sample_avail=True)
    for number in range(3):
        buffer.add(tr(number, rew=np.nan if number == 0 else 1.0))
    assert buffer[:].rew.tolist() == [1, 1]
    assert not buffer.hasnull()


def test_no_slots_from_one_to_itself() -> None:
    assert filled(5, 8, (2, 6)).get_buffer_indices(3, 3).tolist() == []
