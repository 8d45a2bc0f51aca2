"""SliceSampler: runs of one episode each, from every stored place and from no other."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service.buffer.replay_buffer import ReplayBuffer
from replay_service.buffer.samplers.slice import SliceSampler
from replay_service.buffer.storages.lazy_tensor import LazyTensorStorage
from replay_service.buffer.storages.list import ListStorage
from replay_service.errors import EmptyBufferError
from tests.buffer.episode_rows import assert_runs, buffer_of, chi_square, episode_rows, slices_in
from tests.contracts.sampler import SamplerContract


class TestSliceSampler(SamplerContract):
    def make(self, capacity: int) -> SliceSampler:
        return SliceSampler(num_slices=1, strict_length=False)


@pytest.mark.parametrize("size", [{"slice_len": 4}, {"num_slices": 3}])
@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_slices_are_runs_of_one_episode(size: dict[str, int], storage: Any) -> None:
    buffer = buffer_of(SliceSampler(**size), episode_rows([5, 9, 4]), storage=storage(50))
    for _ in range(20):
        slices = slices_in(buffer.sample(12))
        assert [len(run) for run in slices] == [4, 4, 4]
        assert_runs(slices)


def test_every_start_is_drawn_and_none_that_does_not_fit() -> None:
    buffer = buffer_of(SliceSampler(slice_len=3), episode_rows([5, 4, 2]))
    starts = {run[0] for _ in range(100) for run in slices_in(buffer.sample(12))}
    assert starts == {(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)}


def test_starts_are_equally_likely() -> None:
    buffer = buffer_of(SliceSampler(slice_len=3), episode_rows([12, 12, 12]))
    sample = buffer.sample(3 * 20_000)
    starts = torch.bincount(sample["number"][::3] * 10 + sample["step"][::3], minlength=30).to(torch.float64)
    assert chi_square(starts) < 66.0  # 29 degrees of freedom, one in ten thousand


def test_episodes_are_equally_likely_however_long() -> None:
    buffer = buffer_of(SliceSampler(slice_len=2), episode_rows([2, 30, 5, 11]))
    numbers = buffer.sample(40_000)["number"][::2]
    assert chi_square(torch.bincount(numbers, minlength=4).to(torch.float64)) < 21.1  # 3 degrees of freedom


def test_the_last_step_of_a_short_episode_is_drawn() -> None:
    buffer = buffer_of(SliceSampler(slice_len=4, strict_length=False), episode_rows([2, 10]))
    slices = [tuple(run) for _ in range(40) for run in slices_in(buffer.sample(8))]
    assert ((0, 0), (0, 1)) in slices
    assert any(run[-1] == (1, 9) for run in slices)


def test_an_id_that_comes_back_is_another_episode() -> None:
    rows = episode_rows([3, 4, 3, 4])
    rows["episode"] = rows["number"] % 2  # 0 1 0 1
    del rows["next"]
    buffer = buffer_of(SliceSampler(slice_len=3), rows)
    for _ in range(30):
        assert_runs(slices_in(buffer.sample(9)))


def test_after_the_wrap_no_slice_goes_over_the_newest_step() -> None:
    sampler = SliceSampler(slice_len=6)
    buffer = buffer_of(sampler, capacity=20)
    buffer.extend(episode_rows([19], closed=True))  # nearly as long as the ring
    buffer.sample(6)  # the index is followed from here on
    buffer.extend(episode_rows([19], first=1))
    seen = set()
    for _ in range(200):
        slices = slices_in(buffer.sample(12))
        assert_runs(slices)
        seen |= {step for run in slices for step in run}
    assert seen == {(1, step) for step in range(19)}


def test_an_episode_longer_than_the_ring_begins_with_its_oldest_stored_step() -> None:
    buffer = buffer_of(SliceSampler(slice_len=5), capacity=16)
    rows = episode_rows([50], closed=False)
    for start in range(0, 50, 3):
        buffer.extend(rows[start : start + 3])
        if start > 5:
            slices = slices_in(buffer.sample(20))
            assert_runs(slices)
    stored = {run[0][1] for _ in range(100) for run in slices_in(buffer.sample(20))}
    assert stored == set(range(34, 46))


def test_unwritten_slots_are_never_drawn() -> None:
    buffer = buffer_of(SliceSampler(slice_len=2), capacity=1000)
    written = 0
    for length in (3, 2, 7):
        buffer.extend(episode_rows([length]))
        written += length
        for _ in range(30):
            assert int(buffer.sample(20)["index"].max()) < written


def test_extends_in_pieces_and_at_once_give_the_same_draws() -> None:
    rows = episode_rows([7, 3, 12, 5, 9], closed=False)
    whole, pieces, late = (buffer_of(SliceSampler(slice_len=3), capacity=25) for _ in range(3))
    pieces.extend(rows[:4])
    pieces.sample(3)
    for start in range(4, len(rows), 5):
        pieces.extend(rows[start : start + 5])
        late.extend(rows[start : start + 5])
    whole.extend(rows)
    for buffer in (whole, pieces):
        buffer.set_rng(torch.Generator().manual_seed(5))
    assert sorted(map(tuple, _stream(whole, 40))) == sorted(map(tuple, _stream(pieces, 40)))


def _stream(buffer: ReplayBuffer, draws: int) -> list[Any]:
    return [tuple(run) for _ in range(draws) for run in slices_in(buffer.sample(6))]


def test_moved_ends_count_at_once() -> None:
    buffer = buffer_of(SliceSampler(slice_len=4), episode_rows([8]))
    buffer.sample(4)
    buffer.set_at_(("next", "done"), torch.tensor([[True]]), torch.tensor([3]))
    starts = {run[0][1] for _ in range(30) for run in slices_in(buffer.sample(8))}
    assert starts == {0, 4}
    buffer.set_at_(("next", "done"), torch.tensor([[False]]), torch.tensor([3]))
    starts = {run[0][1] for _ in range(60) for run in slices_in(buffer.sample(8))}
    assert starts == {0, 1, 2, 3, 4}


def test_short_episodes_are_padded_with_their_last_step() -> None:
    sampler = SliceSampler(slice_len=4, strict_length=False, pad_output=True)
    buffer = buffer_of(sampler, episode_rows([2]))
    sample, info = buffer.sample(8, return_info=True)
    assert sample["step"].tolist() == [0, 1, 1, 1] * 2
    assert info["collector", "mask"].tolist() == [True, True, False, False] * 2
    assert sample["collector", "mask"].tolist() == info["collector", "mask"].tolist()
    assert sample["next", "truncated"].flatten().tolist() == [False, True, False, False] * 2


@pytest.mark.parametrize(
    ("span", "spans"),
    [
        (False, {(0, 4), (1, 4), (2, 4)}),
        ((False, 2), {(0, 4), (1, 4), (2, 4), (3, 3), (4, 2)}),
        ((1, False), {(0, 3), (0, 4), (1, 4), (2, 4)}),
        (True, {(0, 1), (0, 2), (0, 3), (0, 4), (1, 4), (2, 4), (3, 3), (4, 2), (5, 1)}),
    ],
)
def test_spans_hang_over_as_far_as_allowed(span: Any, spans: set[tuple[int, int]]) -> None:
    buffer = buffer_of(SliceSampler(slice_len=4, span=span), episode_rows([6]))
    found = {(run[0][1], len(run)) for _ in range(100) for run in slices_in(buffer.sample(16))}
    assert found == spans


def test_flags_join_those_that_are_stored() -> None:
    rows = episode_rows([4])
    rows["next", "terminated"] = rows["next", "done"].clone()
    rows["is_init"] = torch.tensor([True, False, False, False])
    buffer = buffer_of(SliceSampler(slice_len=2), rows)
    for _ in range(10):
        sample, info = buffer.sample(2, return_info=True)
        ends = sample["step"][1] == 3
        assert sample["next", "truncated"].tolist() == [[False], [True]]
        assert sample["next", "done"].tolist() == [[False], [True]]
        assert sample["next", "terminated"].tolist() == [[False], [bool(ends)]]
        assert sample["is_init"].tolist() == [True, False]
        assert info["next", "truncated"].dtype == torch.bool


def test_flags_can_be_left_out() -> None:
    sampler = SliceSampler(slice_len=2, truncated_key=None, init_key=None)
    _, info = buffer_of(sampler, episode_rows([4])).sample(4, return_info=True)
    assert set(info) == {"index"}


def test_any_of_several_end_flags_ends_an_episode() -> None:
    rows = episode_rows([6])
    rows["over"] = torch.arange(6) == 1
    rows["cut"] = torch.arange(6) == 3
    buffer = buffer_of(SliceSampler(slice_len=2, end_keys=["over", "cut", "absent"]), rows)
    starts = {run[0][1] for _ in range(30) for run in slices_in(buffer.sample(8))}
    assert starts == {0, 2, 4}
    single = buffer_of(SliceSampler(slice_len=4, end_key="over"), rows)
    assert {run[0][1] for _ in range(10) for run in slices_in(single.sample(8))} == {2}


@pytest.mark.parametrize("name", ["ends", "trajectories"])
def test_marks_may_be_handed_over(name: str) -> None:
    rows = episode_rows([3, 5, 2])
    # The ring is full: what stands at its end goes on at its beginning.
    marks = (
        torch.tensor([0, 0, 1, 0, 0, 0, 0, 1, 0, 0]) if name == "ends" else torch.tensor([4, 4, 4, 5, 5, 5, 5, 5, 4, 4])
    )
    sampler = SliceSampler(slice_len=5, cache_values=True, **{name: marks})
    buffer = buffer_of(sampler, rows, capacity=10)
    starts = {int(buffer.sample(5)["index"][0]) for _ in range(40)}
    assert starts == {8, 3}


def test_lanes_are_rings_of_their_own() -> None:
    lanes = [episode_rows([4, 8]), episode_rows([7, 5], first=10)]
    buffer = buffer_of(SliceSampler(slice_len=4), storage=LazyTensorStorage(24, ndim=2))
    buffer.extend(torch.stack([lane.clone() for lane in lanes]))  # type: ignore[arg-type]
    seen: Counter[int] = Counter()
    for _ in range(50):
        sample = buffer.sample(16)
        assert sample["index"].shape == (16, 2)
        slices = slices_in(sample)
        assert_runs(slices)
        seen.update(run[0][0] for run in slices)
    assert set(seen) == {0, 1, 10, 11}


def test_state_round_trip_over_a_wrapped_ring() -> None:
    def make() -> ReplayBuffer:
        return buffer_of(SliceSampler(slice_len=3), capacity=20)

    first = make()
    for number in range(6):
        first.extend(episode_rows([7], first=number))
    second = make()
    second.load_state_dict(first.state_dict())
    assert _stream(first, 20) == _stream(second, 20)
    for buffer in (first, second):
        buffer.extend(episode_rows([5], first=9))
    assert _stream(first, 20) == _stream(second, 20)


def test_a_sampler_that_comes_later_knows_where_the_ring_begins() -> None:
    buffer = buffer_of(None, capacity=20)
    buffer.extend(episode_rows([27], closed=False))
    buffer.set_sampler(SliceSampler(slice_len=8))
    for _ in range(50):
        assert_runs(slices_in(buffer.sample(16)))


def test_what_no_batch_can_be_made_of() -> None:
    buffer = buffer_of(SliceSampler(slice_len=4), episode_rows([3, 2]))
    assert not buffer.can_sample(4)
    with pytest.raises(EmptyBufferError, match=r"slice length \(4\) must be at most the 3 steps"):
        buffer.sample(4)
    with pytest.raises(ValueError, match=r"batch_size \(6\) must be divisible by slice_len \(4\)"):
        buffer.sample(6)
    with pytest.raises(ValueError, match=r"batch_size \(7\) must be divisible by num_slices \(2\)"):
        buffer_of(SliceSampler(num_slices=2), episode_rows([3, 2])).sample(7)
    plain = buffer_of(SliceSampler(slice_len=2), TensorDict({"obs": torch.arange(4)}, [4]))
    with pytest.raises(KeyError, match="end_key must name"):
        plain.sample(2)
    with pytest.raises(KeyError, match=r"traj_key \(nowhere\)"):
        buffer_of(SliceSampler(slice_len=2, traj_key="nowhere"), episode_rows([3])).sample(2)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({}, TypeError, "exactly one of num_slices and slice_len"),
        ({"num_slices": 2, "slice_len": 3}, TypeError, "exactly one of num_slices and slice_len"),
        ({"slice_len": 0}, ValueError, r"slice_len \(0\) must be a positive integer"),
        ({"slice_len": 3, "pad_output": True}, ValueError, "strict_length=False"),
        ({"slice_len": 3, "span": 3}, ValueError, "span"),
        ({"slice_len": 3, "end_key": "a", "end_keys": ["b"]}, TypeError, "end_key and end_keys"),
        ({"slice_len": 3, "ends": torch.zeros(3), "traj_key": "a"}, TypeError, "ends and traj_key"),
        ({"slice_len": 3, "fragmented": True}, ValueError, "fragmented"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        SliceSampler(**settings)
