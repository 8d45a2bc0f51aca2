"""One ring of steps. Names E… are rows of the semantics that are kept to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from replay_service.episodic import Batch, ReplayBuffer
from replay_service.errors import EmptyBufferError, LayoutError
from tests.episodic.steps import filled, listed, tr


def wrapped() -> ReplayBuffer:
    """E29: size 5, steps 0 to 7, ends at 2 and 6."""
    return filled(5, 8, (2, 6))


@pytest.mark.parametrize("name", ["obs", "act", "rew"])
def test_e19_a_missing_entry_is_refused_and_nothing_changes(name: str) -> None:
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
def test_what_done_alone_means(flags: dict[str, Any], terminated: bool, truncated: bool) -> None:
    buffer = ReplayBuffer(3)
    buffer.add(Batch({"obs": 0, "act": 0, "rew": 0.0, **flags}))
    assert (buffer.terminated[0], buffer.truncated[0]) == (terminated, truncated)
    assert buffer.done[0] == (terminated or truncated)


def test_e21_returns_lengths_and_first_slots() -> None:
    buffer = ReplayBuffer(10)
    added = {number: listed(buffer.add(tr(number, number % 4 == 0))) for number in range(15)}
    expected = {0: [0, 0, 1, 0], 1: [1, 0, 0, 1], 4: [4, 10, 4, 1], 5: [5, 0, 0, 5], 8: [8, 26, 4, 5], 9: [9, 0, 0, 9]}
    expected |= {10: [0, 0, 0, 9], 12: [2, 42, 4, 9], 13: [3, 0, 0, 3], 14: [4, 0, 0, 3]}
    assert {number: added[number] for number in expected} == expected
    assert buffer.sample_indices(0).tolist() == [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]


def test_e26_first_slots_that_are_overwritten_are_still_told() -> None:
    buffer = ReplayBuffer(9, stack_num=4, ignore_obs_next=True)
    firsts = [listed(buffer.add(tr(number, number % 5 == 0, obs={"id": number})))[3] for number in range(16)]
    assert firsts == [0, 1, 1, 1, 1, 1, 6, 6, 6, 6, 6, 2, 2, 2, 2, 2]
    assert np.flatnonzero(buffer.done).tolist() == [1, 6]
    assert not hasattr(buffer, "obs_next")


def test_e29_around_the_ring() -> None:
    buffer = ReplayBuffer(5)
    added = [listed(buffer.add(tr(number, number in (2, 6)))) for number in range(8)]
    assert [added[2], added[5], added[6], added[7]] == [[2, 3, 3, 0], [0, 0, 0, 3], [1, 18, 4, 3], [2, 0, 0, 2]]
    assert buffer.obs.tolist() == [5, 6, 7, 3, 4]
    assert (buffer.last_index.tolist(), buffer.unfinished_index().tolist()) == ([2], [2])


def test_e31_what_indices_name() -> None:
    buffer = wrapped()
    assert buffer[:].obs.tolist() == [3, 4, 5, 6, 7]
    assert buffer[0:].obs.tolist() == [5, 6, 7, 3, 4]
    assert buffer[0:2].obs.tolist() == [5, 6]
    assert buffer[::2].obs.tolist() == [5, 7, 4]
    assert buffer[-1].obs == 4
    assert buffer[buffer.done].obs.tolist() == [6]
    assert buffer[[[0, 1], [2, 3]]].obs.tolist() == [[5, 6], [7, 3]]
    assert buffer[torch.tensor([4, 0])].obs.tolist() == [4, 5]


def test_e32_slots_of_an_episode() -> None:
    buffer = wrapped()
    assert buffer.get_buffer_indices(4, 2).tolist() == [4, 0, 1]
    assert buffer.get_buffer_indices(3, 5).tolist() == [3, 4]
    assert buffer.subbuffer_edges.tolist() == [0, 5]
    with pytest.raises(ValueError, match="same ring"):
        buffer.get_buffer_indices(0, 6)


def test_e33_an_episode_that_goes_on() -> None:
    buffer = filled(10, 4)
    assert buffer.prev(np.arange(4)).tolist() == [0, 0, 1, 2]
    assert buffer.next(np.arange(4)).tolist() == [1, 2, 3, 3]
    assert (buffer.prev(2), buffer.next(2), buffer.next(-1)) == (1, 3, 3)
    assert buffer.unfinished_index().tolist() == [3]
    assert buffer[0:10].obs.tolist() == [0, 1, 2, 3]
    assert buffer[-1].obs == 3
    assert buffer[~buffer.done].obs.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("index", [4, 9, 10, -5, [0, 4]])
def test_what_holds_no_step_is_never_read(index: Any) -> None:
    buffer = filled(10, 4)
    for read in (buffer.__getitem__, buffer.prev, buffer.next, lambda at: buffer.get(at, "obs")):
        with pytest.raises(IndexError, match="stored step"):
            read(index)


def test_e34_how_many_are_drawn() -> None:
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


def test_none_draws_every_step_once() -> None:
    buffer = filled(10, 14)
    first, second = (buffer.sample_indices(None).tolist() for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second


def test_e35_draws_follow_the_seed() -> None:
    assert filled(10, 10).sample_indices(6).tolist() == [6, 3, 7, 4, 6, 9]
    assert filled(10, 10, random_seed=7).sample_indices(6).tolist() == [4, 9, 6, 3, 3, 7]
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    drawn = [filled(10, 10, random_seed=generator).sample_indices(20).tolist() for generator in generators]
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(("keep", "expected"), [(True, [0, 16, 4, 0]), (False, [0, 10, 1, 0])])
def test_e37_reset(keep: bool, expected: list[float]) -> None:
    buffer = ReplayBuffer(5)
    for number in (1, 2, 3):
        buffer.add(tr(number))
    buffer.reset(keep_statistics=keep)
    assert len(buffer) == 0
    assert listed(buffer.add(tr(10, True))) == expected
    assert buffer.obs.tolist() == [10, 2, 3, 0, 0]
    assert buffer[:].obs.tolist() == [10]


def test_e38_e39_stacked_frames() -> None:
    buffer = filled(6, 5, (2,), stack_num=3)
    batch = buffer[np.arange(5)]
    assert batch.obs.tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [3, 3, 3], [3, 3, 4]]
    assert batch.obs_next.tolist() == [[1, 1, 1], [1, 1, 2], [1, 2, 3], [4, 4, 4], [4, 4, 5]]
    assert batch.act.tolist() == batch.rew.tolist() == [0, 1, 2, 3, 4]
    assert buffer.get(4, "obs").tolist() == [3, 3, 4]
    assert buffer.get([4, 1], "obs", stack_num=2).tolist() == [[3, 4], [0, 1]]
    assert buffer.get(np.arange(5), "obs", stack_num=1).tolist() == [0, 1, 2, 3, 4]
    assert buffer.get(np.arange(5), "rew")[2].tolist() == [0, 1, 2]
    assert buffer.get(0, "nothing", 7) == 7
    with pytest.raises(KeyError, match="nothing"):
        buffer.get(0, "nothing")
    assert buffer[np.array([[0, 4]])].obs.tolist() == [[[0, 0, 0], [3, 3, 4]]]


def test_e40_info_and_policy_are_stacked_too() -> None:
    buffer = ReplayBuffer(5, stack_num=2)
    for number in range(3):
        buffer.add(tr(number, info={"t": number}, policy=Batch(p=number)))
    assert buffer[:].info.t.tolist() == buffer[:].policy.p.tolist() == [[0, 0], [0, 1], [1, 2]]


def test_e41_next_observations_that_are_not_stored() -> None:
    buffer = filled(4, 6, (3,), ignore_obs_next=True)
    assert buffer[:].obs.tolist() == [2, 3, 4, 5]
    assert buffer[:].obs_next.tolist() == [3, 3, 5, 5]
    assert buffer.obs.tolist() == [4, 5, 2, 3]


def test_e43_only_whole_stacks() -> None:
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


def test_only_the_last_frame_is_stored() -> None:
    buffer = ReplayBuffer(5, stack_num=2, save_only_last_obs=True)
    for number in range(3):
        buffer.add(tr(number, obs=np.array([number - 1, number]), obs_next={"a": np.array([number, number + 1])}))
    assert buffer.obs.tolist() == [0, 1, 2, 0, 0]
    assert buffer[:].obs.tolist() == [[0, 0], [0, 1], [1, 2]]
    assert buffer.obs_next.a[:3].tolist() == [1, 2, 3]
    with pytest.raises(LayoutError, match="axis of frames"):
        buffer.add(tr(3))


def test_e44_entries_that_come_and_go() -> None:
    buffer = ReplayBuffer(3)
    buffer.add(tr(1))
    buffer.add(tr(2, foo=5.0, info={"n": 1, "s": "x"}))
    buffer.add(tr(3))
    assert buffer.foo.tolist() == [0, 5, 0]
    assert buffer[[1]].foo.tolist() == [5]
    assert (buffer.info.n.tolist(), buffer.info.s.tolist()) == ([0, 1, 0], [None, "x", None])
    buffer.add(tr(4))
    buffer.add(tr(5))
    assert buffer.foo.tolist() == [0, 0, 0]
    assert buffer.info.s.tolist() == [None, None, None]


def test_e45_flags_are_what_terminated_and_truncated_say() -> None:
    buffer, step = ReplayBuffer(3), tr(0, done=True)
    buffer.add(step)
    assert not buffer.done[0]
    assert step.done == True  # noqa: E712 - an array of no dimension: the caller's batch is as it was
    with pytest.raises(AssertionError, match="obs is reserved"):
        buffer.obs = 1
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
    buffer.add(tr(1, obs=2.9, rew=2))
    assert (buffer.obs.dtype, buffer.obs.tolist(), buffer.rew.dtype) == (np.uint8, [1, 2, 0], np.float64)
    assert buffer.done.dtype == np.bool_


def test_what_was_read_and_added_belongs_to_the_caller() -> None:
    buffer, observation = ReplayBuffer(3), np.zeros(2)
    buffer.add(tr(0, obs=observation))
    observation += 1
    buffer[:].obs[:] = 7
    assert buffer[0].obs.tolist() == [0, 0]
