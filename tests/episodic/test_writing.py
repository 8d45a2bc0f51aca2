"""What changes one ring of steps besides adding one. Names E… are rows of the semantics that are kept to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from replay_service.episodic import Batch, ReplayBuffer
from replay_service.errors import LayoutError
from tests.episodic.steps import filled, listed, rows, tr


@pytest.mark.parametrize(
    "wrong",
    [
        {"obs": np.zeros(2)},
        {"obs": {"a": 1}},
        {"obs": "text"},
        {"act": [1, 2]},
        {"rew": [1.0, 2.0]},
        {"rew": "much"},
        {"obs_next": np.zeros((2, 2))},
        {"info": {"n": {"deeper": 1}}},
        {"info": {"n": np.zeros(3)}},
    ],
)
def test_e47_a_wrong_shape_changes_nothing(wrong: dict[str, Any]) -> None:  # E47
    buffer = ReplayBuffer(4)
    for number in range(2):
        buffer.add(tr(number, info={"n": number}))
    before = repr(buffer)
    with pytest.raises(LayoutError):
        buffer.add(tr(2, **wrong))
    assert repr(buffer) == before
    assert (len(buffer), buffer.last_index.tolist()) == (2, [1])
    assert listed(buffer.add(tr(2, True))) == [2, 3.0, 3, 0]


def test_a_part_of_an_observation_cannot_be_left_out() -> None:
    buffer = ReplayBuffer(4)
    buffer.add(tr(0, obs={"a": 1, "b": 2}))
    for wrong in ({"obs": {"a": 1}}, {"obs": {"a": 1, "b": 2}, "obs_next": {}}):
        with pytest.raises(LayoutError, match="missing"):
            buffer.add(tr(1, **wrong))
    assert len(buffer) == 1


def test_e48_from_data_knows_its_newest_step() -> None:  # E48
    flags = np.array([False, True, False, False])
    numbers = np.arange(4)
    buffer = ReplayBuffer.from_data(numbers, numbers, numbers, flags, ~flags & False, flags, numbers + 1)
    assert (len(buffer), buffer.maxsize, buffer.last_index.tolist()) == (4, 4, [3])
    assert buffer.unfinished_index().tolist() == [3]
    assert buffer.prev(numbers).tolist() == [0, 0, 2, 2]
    assert buffer.next(numbers).tolist() == [1, 1, 3, 3]
    assert listed(buffer.add(tr(9, True))) == [0, 9.0, 1, 0]
    with pytest.raises(AssertionError, match="same number of rows"):
        ReplayBuffer.from_data(numbers, numbers, numbers[:2], flags, flags, flags, numbers)
    assert len(ReplayBuffer.from_data(*([np.zeros(0)] * 7))) == 0


def test_e49_set_batch() -> None:  # E49
    buffer = ReplayBuffer(3)
    numbers = np.arange(3)
    buffer.set_batch(Batch(obs=numbers, act=numbers, rew=numbers, done=[False, True, False]))
    assert (buffer.obs.tolist(), len(buffer), buffer.last_index.tolist()) == ([0, 1, 2], 0, [0])
    for wrong in (Batch(obs=np.arange(2)), Batch(obs=np.arange(4)), Batch(obs=numbers, other=numbers)):
        with pytest.raises(AssertionError, match="must have 3 rows"):
            buffer.set_batch(wrong)
    stored = filled(3, 4)
    stored.set_batch(Batch(obs=numbers, act=numbers, rew=numbers, done=[False, True, False]))
    assert stored.sample_indices(0).tolist() == [1, 2, 0]
    assert stored.next([0, 1, 2]).tolist() == [0, 1, 0]
    assert (len(stored), stored.last_index.tolist()) == (3, [0])
    assert listed(stored.add(tr(9)))[0] == 1


def test_e50_dropnull() -> None:  # E50
    buffer = filled(5, 4)
    buffer.set_array_at_key(np.array([5.0, 6.0]), "ret", index=[0, 1])
    assert buffer.hasnull()
    assert buffer.isnull().ret.tolist() == [False, False, True, True]
    buffer.dropnull()
    assert (len(buffer), buffer[:].ret.tolist(), buffer.maxsize) == (2, [5, 6], 5)
    assert not buffer.hasnull()
    buffer.dropnull()
    assert listed(buffer.add(tr(9, True, ret=1.0)))[0] == 2


def test_dropnull_forgets_rows_and_never_invents_any() -> None:  # E50
    buffer = filled(5, 3)
    buffer.set_array_at_key(np.array([1.0, np.nan, 3.0]), "ret", index=[0, 1, 2])
    buffer.dropnull()
    assert (len(buffer), buffer[:].obs.tolist(), buffer.maxsize) == (2, [0, 2], 5)
    # A step is missing between the two, so that they do not follow each other.
    assert buffer.next([0, 1]).tolist() == [0, 1]
    assert buffer.unfinished_index().tolist() == [0, 1]
    assert listed(buffer.add(tr(9, ret=9.0)))[0] == 2
    assert buffer[:].obs.tolist() == [0, 2, 9]


def test_set_array_at_key() -> None:
    buffer = filled(3, 3)
    buffer.set_array_at_key(np.array([9.0, 8.0]), "q", index=[0, 2], default_value=-1.0)
    assert buffer.q.tolist() == [9, -1, 8]
    buffer.set_array_at_key([7.0], "q", index=[1])
    assert buffer.q.tolist() == [9, 7, 8]
    buffer.set_array_at_key([7.0], "ret", index=[1])
    assert np.isnan(buffer.ret).tolist() == [True, False, True]
    buffer.set_array_at_key(np.arange(3.0), "whole")
    assert buffer[:].whole.tolist() == [0, 1, 2]
    buffer.set_array_at_key([5.0], "rew", index=[1])
    assert buffer.rew.tolist() == [0, 5, 2]
    with pytest.raises(ValueError, match="3 rows"):
        filled(10, 3).set_array_at_key(np.arange(3.0), "q")
    with pytest.raises(TypeError, match="default_value"):
        buffer.set_array_at_key(np.array([1, 2]), "i", index=[0, 2])
    with pytest.raises(ValueError, match="one row for each"):
        buffer.set_array_at_key([1.0], "q")
    with pytest.raises(ValueError, match="end flag"):
        buffer.set_array_at_key([True] * 3, "done")
    assert not hasattr(buffer, "i")


def test_e22_update() -> None:  # E22 E23
    buffer, other = filled(20, 3), ReplayBuffer(10)
    for number in range(15):
        other.add(tr(number, number % 4 == 0))
    assert buffer.update(other).tolist() == list(range(3, 13))
    assert len(other) == 10
    assert buffer.obs.tolist() == [0, 1, 2, *range(5, 15)] + [0] * 7
    assert len(buffer) == 13
    assert buffer.sample_indices(0).tolist() == list(range(13))
    assert buffer.prev(np.arange(13)).tolist() == [0, 0, 1, 2, 3, 4, 5, 7, 7, 8, 9, 11, 11]
    assert buffer.next(np.arange(13)).tolist() == [1, 2, 3, 4, 5, 6, 6, 8, 9, 10, 10, 12, 12]
    assert np.flatnonzero(buffer.done).tolist() == [6, 10]


def test_e23_update_can_keep_fragments_apart() -> None:  # E23
    buffer = filled(20, 3)
    assert buffer.update(filled(10, 15, (0, 4, 8, 12)), apart=True).tolist() == list(range(3, 13))
    assert buffer.prev(np.arange(13)).tolist() == [0, 0, 1, 3, 3, 4, 5, 7, 7, 8, 9, 11, 11]
    assert buffer.next(np.arange(13)).tolist() == [1, 2, 2, 4, 5, 6, 6, 8, 9, 10, 10, 12, 12]


def test_e51_update_joins_what_is_unfinished() -> None:  # E51
    buffer, other = filled(10, 2), ReplayBuffer(5)
    for number in (100, 101, 102):
        other.add(tr(number))
    before = repr(other)
    assert buffer.update(other).tolist() == [2, 3, 4]
    assert buffer.prev(np.arange(5)).tolist() == [0, 0, 1, 2, 3]
    assert buffer.next(np.arange(5)).tolist() == [1, 2, 3, 4, 4]
    assert listed(buffer.add(tr(7, True))) == [5, 8.0, 3, 0]
    assert len(other) == 3
    assert repr(other) == before


def test_update_can_keep_episodes_apart() -> None:
    buffer, other = filled(10, 2), filled(5, 3)
    buffer.update(other, apart=True)
    assert buffer.prev(np.arange(5)).tolist() == [0, 0, 2, 2, 3]
    assert buffer.next(np.arange(5)).tolist() == [1, 1, 3, 4, 4]
    assert buffer.unfinished_index().tolist() == [1, 4]
    assert listed(buffer.add(tr(7, True))) == [5, 7.0, 1, 5]
    copied = ReplayBuffer(10)
    copied.update(buffer)
    assert copied.next(np.arange(6)).tolist() == buffer.next(np.arange(6)).tolist()


def test_after_update_an_episode_begins_where_it_is_stored() -> None:  # [Q] of section 2
    buffer, other = filled(10, 2, (1,)), filled(5, 3, (2,))
    buffer.update(other)
    assert listed(buffer.add(tr(7, True))) == [5, 7.0, 1, 5]


def test_update_with_more_than_fits() -> None:
    buffer, other = ReplayBuffer(3), filled(5, 5)
    assert buffer.update(other).tolist() == [0, 1, 2, 0, 1]
    assert buffer[:].obs.tolist() == [2, 3, 4]
    assert filled(5, 5, (1,)).update(other).tolist() == [0, 1, 2, 3, 4]
    wrapping = filled(5, 3)
    assert wrapping.update(filled(4, 6, (4,))).tolist() == [3, 4, 0, 1]
    assert (wrapping[:].obs.tolist(), wrapping.obs.tolist()) == ([2, 2, 3, 4, 5], [4, 5, 2, 2, 3])
    assert wrapping[:].done.tolist() == [False, False, False, True, False]
    assert buffer.update(ReplayBuffer(4)).size == ReplayBuffer(0).update(other).size == 0


def test_e53_several_rewards_a_step() -> None:  # E53
    buffer = ReplayBuffer(5)
    first, second = (buffer.add(tr(number, number == 1, rew=np.array([1.0, 2.0]))) for number in range(2))
    assert first[1].tolist() == [[0, 0]]
    assert second[1].tolist() == [[2, 4]]
    assert buffer.rew.shape == (5, 2)


def test_rows_of_one_ring() -> None:  # [Q] of section 2
    buffer = ReplayBuffer(4)
    added = buffer.add(rows([0, 1, 2], [0, 1, 0]), buffer_ids=[0, 0, 0])
    assert [column.tolist() for column in added] == [[0, 1, 2], [0, 1, 0], [0, 2, 0], [0, 0, 2]]
    with pytest.raises(IndexError, match="buffer_ids"):
        buffer.add(rows([3]), buffer_ids=[1])
    with pytest.raises(LayoutError, match="one row for each"):
        buffer.add(rows([3, 4]), buffer_ids=[0])
    assert len(buffer) == 3
    buffer.add(rows(list(range(10, 19))), buffer_ids=[0] * 9)
    assert buffer[:].obs.tolist() == [15, 16, 17, 18]


def test_ending_an_episode_that_was_given_up() -> None:
    buffer = filled(6, 2)
    buffer.end_episodes()
    assert (buffer.truncated[:2].tolist(), buffer.done[:2].tolist()) == ([False, True], [False, True])
    assert buffer.next([0, 1]).tolist() == [1, 1]
    assert buffer.unfinished_index().size == 0
    assert listed(buffer.add(tr(5, True))) == [2, 5.0, 1, 2]
    buffer.end_episodes([0])
    assert buffer.truncated[2] == np.False_
    ReplayBuffer(3).end_episodes()


@pytest.mark.parametrize(
    ("settings", "error"),
    [({"size": -1}, ValueError), ({"size": 2.5}, TypeError), ({"size": 3, "stack_num": 0}, ValueError)],
)
def test_wrong_settings(settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="must be"):
        ReplayBuffer(**settings)


def test_nothing_fits_into_no_slots() -> None:
    with pytest.raises(ValueError, match="size"):
        ReplayBuffer(0).add(tr(0))


def test_dropnull_does_not_cut_behind_the_newest_step() -> None:
    buffer = ReplayBuffer(6)
    for number in range(4):
        buffer.add(tr(number, rew=np.nan if number == 0 else float(number)))
    buffer.dropnull()
    buffer.add(tr(9, True))
    assert buffer.prev(np.arange(4)).tolist() == [0, 0, 1, 2]
    assert buffer.unfinished_index().tolist() == []


def test_dropnull_ends_what_has_lost_its_newest_step() -> None:
    buffer = ReplayBuffer(6)
    for number in range(4):
        buffer.add(tr(number, rew=np.nan if number == 3 else float(number)))
    buffer.dropnull()
    buffer.add(tr(9, True))
    assert buffer.prev(np.arange(4)).tolist() == [0, 0, 1, 3]


def test_after_a_joining_update_the_first_slot_is_that_of_the_episode_that_runs_then() -> None:
    buffer = filled(10, 2)
    buffer.update(filled(5, 3, (1,)))  # ends what ran here, and leaves a step of another episode
    slot, _, _, first = listed(buffer.add(tr(9, True)))
    assert (slot, buffer.prev(slot), first) == (5, 4, 4)


def test_dropnull_keeps_a_cut_behind_the_newest_step() -> None:
    buffer = filled(8, 1)
    other = ReplayBuffer(4)
    for number in range(3):
        other.add(tr(number, rew=np.nan if number == 0 else 1.0))
    buffer.update(other, apart=True)
    buffer.dropnull()
    buffer.add(tr(9, True))
    assert buffer.prev(np.arange(4)).tolist() == [0, 1, 1, 3]


def test_after_an_update_that_ends_an_episode_the_next_one_begins_with_the_next_step() -> None:
    buffer = filled(10, 2)
    buffer.update(filled(5, 2, (1,)))
    assert listed(buffer.add(tr(9, True)))[3] == 4
