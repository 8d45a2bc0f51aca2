"""One ring of steps. Names E… are rows of the semantics that are kept to."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from replay_service.episodic import Batch, ReplayBuffer
from replay_service.episodic.parts import RESERVED
from replay_service.errors import EmptyBufferError, LayoutError
from tests.episodic.steps import filled, listed, rows, tr


@pytest.mark.parametrize("name", ["obs", "act", "rew"])
def test_e19_a_missing_entry_is_refused_and_nothing_changes(name: str) -> None:  # E19
    buffer = filled(5, 2)
    step = tr(2)
    del step[name]
    with pytest.raises(LayoutError, match=rf"{name} \(missing\)"):
        buffer.add(step)
    assert (len(buffer), listed(buffer.add(tr(2, True)))) == (2, [2, 3.0, 3, 0])


@pytest.mark.parametrize("names", [["terminated"], ["truncated"], ["terminated", "truncated"]])
def test_a_missing_end_flag_is_refused(names: list[str]) -> None:  # E19
    step = tr(0)
    for name in names:
        del step[name]
    with pytest.raises(LayoutError, match="missing") as caught:
        ReplayBuffer(3).add(step)
    assert isinstance(caught.value, AttributeError)


@pytest.mark.parametrize(
    ("flags", "terminated", "truncated"),
    [
        ({"done": True}, True, False),
        ({"done": True, "terminated": True}, True, False),
        ({"done": True, "terminated": False}, False, True),
        ({"done": True, "truncated": True}, False, True),
        ({"done": True, "info": {"TimeLimit.truncated": True}}, False, True),
        ({"done": False, "info": {"TimeLimit.truncated": True}}, False, False),
    ],
)
def test_what_done_alone_means(flags: dict[str, Any], terminated: bool, truncated: bool) -> None:  # E19
    buffer = ReplayBuffer(3)
    buffer.add(Batch({"obs": 0, "act": 0, "rew": 0.0, **flags}))
    assert (buffer.terminated[0], buffer.truncated[0]) == (terminated, truncated)
    assert buffer.done[0] == (terminated or truncated)


def test_e21_returns_lengths_and_first_slots() -> None:  # E21
    buffer = ReplayBuffer(10)
    added = {number: listed(buffer.add(tr(number, number % 4 == 0))) for number in range(15)}
    expected = {0: [0, 0, 1, 0], 1: [1, 0, 0, 1], 4: [4, 10, 4, 1], 5: [5, 0, 0, 5], 8: [8, 26, 4, 5], 9: [9, 0, 0, 9]}
    expected |= {10: [0, 0, 0, 9], 12: [2, 42, 4, 9], 13: [3, 0, 0, 3], 14: [4, 0, 0, 3]}
    assert {number: added[number] for number in expected} == expected
    others = {1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14}
    assert all(added[number][1:3] == [0, 0] for number in others)
    assert buffer.obs.tolist() == [10, 11, 12, 13, 14, 5, 6, 7, 8, 9]
    assert buffer.sample_indices(0).tolist() == [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]


def test_e26_first_slots_that_are_overwritten_are_still_told() -> None:  # E26
    buffer = ReplayBuffer(9, stack_num=4, ignore_obs_next=True)
    added = [listed(buffer.add(tr(number, number % 5 == 0, obs={"id": number}))) for number in range(16)]
    slots, returns, lengths, firsts = (list(column) for column in zip(*added, strict=True))
    assert slots == [*range(9), *range(7)]
    assert returns == [0, 0, 0, 0, 0, 15, 0, 0, 0, 0, 40, 0, 0, 0, 0, 65]
    assert lengths == [1, 0, 0, 0, 0, 5, 0, 0, 0, 0, 5, 0, 0, 0, 0, 5]
    assert firsts == [0, 1, 1, 1, 1, 1, 6, 6, 6, 6, 6, 2, 2, 2, 2, 2]
    assert buffer.obs.id.tolist() == [9, 10, 11, 12, 13, 14, 15, 7, 8]
    assert np.flatnonzero(buffer.done).tolist() == [1, 6]
    assert not hasattr(buffer, "obs_next")


def test_e29_around_the_ring() -> None:  # E29
    buffer = ReplayBuffer(5)
    added = [listed(buffer.add(tr(number, number in (2, 6)))) for number in range(8)]
    assert [added[2], added[5], added[6], added[7]] == [[2, 3, 3, 0], [0, 0, 0, 3], [1, 18, 4, 3], [2, 0, 0, 2]]
    assert buffer.obs.tolist() == [5, 6, 7, 3, 4]
    assert (buffer.last_index.tolist(), buffer.unfinished_index().tolist()) == ([2], [2])
    assert buffer.prev(np.arange(5)).tolist() == [4, 0, 2, 3, 3]
    assert buffer.next(np.arange(5)).tolist() == [1, 1, 2, 4, 0]


def test_e34_how_many_are_drawn() -> None:  # E34
    buffer = filled(10, 4)
    assert buffer.sample_indices(-1).size == 0
    assert buffer.sample_indices(12).size == 12
    batch, indices = buffer.sample(-1)
    assert (len(batch.obs), indices.size) == (0, 0)
    empty = ReplayBuffer(10)
    assert empty.sample_indices(0).size == empty.sample_indices(-1).size == 0
    calls = [(lambda: empty.sample_indices(2), ValueError), (lambda: empty.sample(2), ValueError)]
    calls += [
        (lambda: empty.sample(0), KeyError),
        (lambda: empty[:], KeyError),
        (empty.unfinished_index, AttributeError),
    ]
    for call, usual in calls:
        with pytest.raises(EmptyBufferError, match=r"empty|nothing is stored") as caught:
            call()
        assert isinstance(caught.value, usual)
        assert str(caught.value) == caught.value.args[0]
    buffer.reset()
    assert buffer.unfinished_index().size == 0


@pytest.mark.parametrize(("keep", "expected"), [(True, [0, 16, 4, 0]), (False, [0, 10, 1, 0])])
def test_e37_reset(keep: bool, expected: list[float]) -> None:  # E37
    buffer = ReplayBuffer(5)
    for number in (1, 2, 3):
        buffer.add(tr(number))
    buffer.reset(keep_statistics=keep)
    assert len(buffer) == 0
    assert listed(buffer.add(tr(10, True))) == expected
    assert buffer.obs.tolist() == [10, 2, 3, 0, 0]
    assert buffer[:].obs.tolist() == [10]


def test_only_the_last_frame_is_stored() -> None:
    buffer = ReplayBuffer(5, stack_num=2, save_only_last_obs=True)
    for number in range(3):
        buffer.add(tr(number, obs=np.array([number - 1, number]), obs_next={"a": np.array([number, number + 1])}))
    assert buffer.obs.tolist() == [0, 1, 2, 0, 0]
    assert buffer[:].obs.tolist() == [[0, 0], [0, 1], [1, 2]]
    assert buffer.obs_next.a[:3].tolist() == [1, 2, 3]
    frames = np.arange(8).reshape(1, 4, 2)
    batched = ReplayBuffer(2, save_only_last_obs=True)
    batched.add(rows([0], obs=frames, obs_next=frames + 1), buffer_ids=[0])
    batched.add(tr(1, obs=frames[0], obs_next=frames[0] + 1))
    assert batched.obs.tolist() == [[6, 7], [6, 7]]
    assert batched.obs_next.tolist() == [[7, 8], [7, 8]]
    with pytest.raises(LayoutError, match="axis of frames"):
        buffer.add(tr(3))


def test_e44_entries_that_come_and_go() -> None:  # E44
    buffer = ReplayBuffer(3)
    buffer.add(tr(1))
    buffer.add(tr(2, foo=5.0, info={"n": 1, "s": "x"}))
    buffer.add(tr(3))
    assert buffer.foo.tolist() == [0, 5, 0]
    assert buffer[:].foo.tolist() == [0, 5, 0]
    assert buffer[[1]].foo.tolist() == [5]
    assert (buffer.info.n.tolist(), buffer.info.s.tolist()) == ([0, 1, 0], [None, "x", None])
    buffer.add(tr(4))
    buffer.add(tr(5))
    assert buffer.foo.tolist() == [0, 0, 0]
    assert buffer.info.s.tolist() == [None, None, None]


def test_e45_flags_are_what_terminated_and_truncated_say() -> None:  # E45
    buffer, step = ReplayBuffer(3), tr(0, done=True)
    before = pickle.loads(pickle.dumps(step))
    buffer.add(step)
    assert not buffer.done[0]
    assert step == before
    assert list(step.keys()) == list(before.keys())
    for term, trunc in ((True, False), (False, True), (True, True)):
        assert buffer[buffer.add(tr(1, term, trunc, done=False))[0]].done.tolist() == [True]
    with pytest.raises(AttributeError, match="nothing"):
        buffer.nothing  # noqa: B018


def test_tensors_go_in_and_come_out() -> None:
    buffer = ReplayBuffer(4)
    for number in range(3):
        buffer.add(tr(number, obs=torch.full((2,), float(number)), act=torch.tensor(number, dtype=torch.bfloat16)))
    batch = buffer[:]
    assert torch.equal(batch.obs, torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]))
    assert batch.act.dtype == torch.bfloat16
    assert isinstance(batch.rew, np.ndarray)
    assert isinstance(buffer.obs, torch.Tensor)


def test_types_are_those_of_the_first_step() -> None:
    buffer = ReplayBuffer(3)
    buffer.add(tr(0, obs=np.uint8(1), rew=1))
    buffer.add(tr(1, obs=2.9, rew=2, act=2.9))
    assert (buffer.obs.dtype, buffer.obs.tolist(), buffer.rew.dtype) == (np.uint8, [1, 2, 0], np.float64)
    assert (buffer.act.dtype, buffer.act.tolist()) == (np.int64, [0, 2, 0])
    assert buffer.done.dtype == buffer.terminated.dtype == buffer.truncated.dtype == np.bool_
    floats = ReplayBuffer(2)
    floats.add(tr(0, act=np.float32(1), obs=np.zeros(2, np.float16)))
    floats.add(tr(1, act=7, obs=np.ones(2)))
    assert (floats.act.dtype, floats.obs.dtype) == (np.float32, np.float16)


def test_what_was_read_and_added_belongs_to_the_caller() -> None:
    buffer, observation = ReplayBuffer(3), np.zeros(2)
    buffer.add(tr(0, obs=observation))
    observation += 1
    buffer[:].obs[:] = 7
    assert buffer[0].obs.tolist() == [0, 0]


def test_e20_whole_columns_have_all_slots() -> None:  # E20
    buffer = filled(20, 3)
    assert buffer.obs.tolist() == [0, 1, 2] + [0] * 17
    assert (len(buffer), len(buffer.obs)) == (3, 20)
    buffer = ReplayBuffer(4)
    buffer.add(tr(1, obs={"x": np.float32(1), "o": "s"}, info={"n": None}))
    assert (buffer.obs.x.tolist(), buffer.obs.o.tolist()) == ([1, 0, 0, 0], ["s", None, None, None])
    assert buffer.info.n.tolist() == [None] * 4


@pytest.mark.parametrize("name", RESERVED)
def test_reserved_entries_are_not_assigned(name: str) -> None:  # E45
    for buffer in (ReplayBuffer(3), filled(3, 2)):
        with pytest.raises(AssertionError, match=f"{name} is reserved"):
            setattr(buffer, name, 1)


def test_entries_that_need_not_be_there() -> None:
    buffer = ReplayBuffer(3)
    buffer.add(Batch(obs=1, act=1, rew=1, terminated=False, truncated=False))
    for batch in (buffer[:], buffer[0], buffer.sample(2)[0]):
        assert tuple(batch.keys()) == RESERVED
        for name in ("obs_next", "info", "policy"):
            assert isinstance(batch[name], Batch)
            assert batch[name].is_empty()
    buffer.add(Batch(obs=1, act=1, rew=1, terminated=False, truncated=False, foo=2.0))
    assert tuple(buffer[[0, 1]].keys()) == (*RESERVED, "foo")


def test_what_add_returns() -> None:
    buffer = ReplayBuffer(3)
    kinds = [np.int64, np.float64, np.int64, np.int64]
    for added in (buffer.add(tr(0)), buffer.add(rows([1]), buffer_ids=[0]), buffer.add(tr(2, True))):
        assert [column.dtype for column in added] == kinds
        assert [column.shape for column in added] == [(1,)] * 4
    with pytest.raises(LayoutError, match="dimensions more"):
        buffer.add(rows([1]))


def test_totals_go_on_where_the_head_of_the_episode_is_overwritten() -> None:
    buffer = ReplayBuffer(3)
    added = [listed(buffer.add(tr(number, number in (4, 6)))) for number in range(7)]
    assert [column[0] for column in added] == [0, 1, 2, 0, 1, 2, 0]
    assert (added[4], added[6]) == ([1, 10, 5, 0], [0, 11, 2, 2])
    assert buffer[:].obs.tolist() == [4, 5, 6]


def test_an_empty_buffer_is_false() -> None:  # E113
    assert not ReplayBuffer(3)
    assert filled(3, 1)
    emptied = filled(3, 3)
    emptied.reset()
    assert not emptied


def test_after_reset_there_is_nothing_and_memory_stays() -> None:
    buffer = filled(5, 3)
    buffer.reset()
    assert (len(buffer), buffer.last_index.tolist(), buffer.sample_indices(0).tolist()) == (0, [0], [])
    assert buffer.obs.tolist() == [0, 1, 2, 0, 0]
    assert buffer[:].obs.size == 0
