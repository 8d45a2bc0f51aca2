"""PrioritizedSliceSampler: steps by priority, each in a slice of its episode, the last ones too."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from replay_service.buffer.replay_buffer import ReplayBuffer
from replay_service.buffer.samplers.prioritized_slice import PrioritizedSliceSampler
from replay_service.buffer.storages.lazy_tensor import LazyTensorStorage
from replay_service.buffer.writers.round_robin import TensorDictRoundRobinWriter
from replay_service.errors import EmptyBufferError, PriorityError
from tests.buffer.episode_rows import assert_runs, buffer_of, episode_rows, slices_in
from tests.contracts.sampler import SamplerContract


class TestPrioritizedSliceSampler(SamplerContract):
    def make(self, capacity: int) -> PrioritizedSliceSampler:
        return PrioritizedSliceSampler(capacity, 0.7, 0.9, num_slices=1, strict_length=False)


def _sampler(capacity: int = 100, alpha: float = 1.0, beta: float = 1.0, **kwargs: Any) -> PrioritizedSliceSampler:
    return PrioritizedSliceSampler(capacity, alpha, beta, **{"eps": 0.0, **kwargs})


def _with_priorities(sampler: PrioritizedSliceSampler, lengths: list[int], priorities: list[float]) -> ReplayBuffer:
    buffer = buffer_of(sampler, episode_rows(lengths))
    buffer.update_priority(torch.arange(len(priorities)), torch.tensor(priorities, dtype=torch.float64))
    return buffer


def test_slices_begin_at_the_drawn_step_or_end_with_its_episode() -> None:
    for step, begin in enumerate([0, 1, 2, 2, 2]):
        priorities = [0.0] * 9
        priorities[4 + step] = 3.0
        buffer = _with_priorities(_sampler(slice_len=3), [4, 5], priorities)
        assert slices_in(buffer.sample(6)) == [[(1, begin + i) for i in range(3)]] * 2


def test_steps_are_drawn_as_their_priorities_say() -> None:
    priorities = [1.0, 2.0, 3.0, 0.0, 4.0, 9.0, 1.0, 0.5, 5.0, 7.0]
    alpha, draws = 0.6, 40_000
    # A span to the right lets every slice begin with its step; the episode of two is too short.
    buffer = _with_priorities(_sampler(alpha=alpha, slice_len=3, span=(False, True)), [5, 2, 3], priorities)
    sample, info = buffer.sample(3 * draws, return_info=True)
    first = torch.cat([torch.tensor([True]), sample["next", "truncated"].flatten()[:-1]])
    records, weights = info["index"][first], info["priority_weight"][first]
    masses = torch.tensor(priorities, dtype=torch.float64) ** alpha
    masses[5:7] = 0.0
    wanted = masses / masses.sum()
    counts = torch.bincount(records, minlength=10) / draws
    assert ((counts - wanted).abs() <= 4 * (wanted * (1 - wanted) / draws).sqrt()).all()
    assert counts[3] == counts[5] == counts[6] == 0
    least = 0.5**alpha
    assert torch.allclose(weights.double(), least / masses[records], atol=1e-5)


def test_weights_are_those_of_the_drawn_step_for_its_whole_slice() -> None:
    buffer = _with_priorities(_sampler(slice_len=2), [4, 4], [1.0, 0, 0, 0, 0, 4.0, 0, 0])
    sample = buffer.sample(40)
    for run, weights in zip(slices_in(sample), sample["priority_weight"].view(-1, 2).tolist(), strict=True):
        assert weights == ([1.0, 1.0] if run[0] == (0, 0) else [0.25, 0.25])


def test_nearly_all_priority_on_episodes_that_are_too_short() -> None:
    buffer = _with_priorities(_sampler(slice_len=3), [2, 2, 4], [1e9, 1e9, 1e9, 1e9, 0.0, 1.0, 0.0, 3.0])
    sample, info = buffer.sample(3000, return_info=True)
    slices = slices_in(sample)
    assert_runs(slices)
    assert {run[0] for run in slices} == {(2, 1)}
    weights = info["priority_weight"].view(-1, 3)[:, 0]
    assert {round(float(weight), 6) for weight in weights} == {1.0, 0.333333}
    assert 0.68 < float((weights < 0.5).float().mean()) < 0.82


def test_short_episodes_are_slices_as_a_whole_where_allowed() -> None:
    buffer = _with_priorities(_sampler(slice_len=3, strict_length=False), [2, 4], [0.0, 1.0, 0.0, 0.0, 0.0, 1.0])
    assert {tuple(run) for _ in range(20) for run in slices_in(buffer.sample(6))} == {
        ((0, 0), (0, 1)),
        ((1, 1), (1, 2), (1, 3)),
    }


@pytest.mark.parametrize(
    ("span", "lengths"), [(False, {3}), ((False, 1), {3, 2}), (True, {3, 2, 1}), ((2, False), {3})]
)
def test_spans_cut_slices_at_the_end_of_their_episode(span: Any, lengths: set[int]) -> None:
    buffer = buffer_of(_sampler(slice_len=3, span=span), episode_rows([6]))
    runs = [run for _ in range(40) for run in slices_in(buffer.sample(12))]
    assert_runs(runs)
    assert {len(run) for run in runs} == lengths


def test_priorities_follow_the_ring() -> None:
    writer = TensorDictRoundRobinWriter(track_generations=True)
    buffer = buffer_of(_sampler(20, slice_len=4), capacity=20, writer=writer)
    for number in range(5):
        buffer.extend(episode_rows([7], first=number))
        sample = buffer.sample(8)
        assert_runs(slices_in(sample))
        buffer.extend(episode_rows([3], first=100 + number))
        stale = sample["index_generation"] != buffer.writer.generations_of(sample["index"])
        sample["td_error"] = torch.rand(8, generator=torch.Generator().manual_seed(number)) + 0.1
        buffer.update_tensordict_priority(sample)
        assert isinstance(buffer.sampler, PrioritizedSliceSampler)
        set_last = dict(zip(sample["index"][~stale].tolist(), sample["td_error"][~stale].tolist(), strict=True))
        priorities = buffer.sampler.priorities()
        assert {record: float(priorities[record]) for record in set_last} == set_last


def test_lanes() -> None:
    rows = torch.stack([episode_rows([4, 4]), episode_rows([8], first=10)])
    buffer = buffer_of(_sampler(slice_len=3), rows, storage=LazyTensorStorage(16, ndim=2))
    buffer.update_priority(torch.tensor([[7, 1], [0, 0]]), torch.tensor([50.0, 50.0]))
    slices = slices_in(buffer.sample(300))
    assert_runs(slices)
    assert sum(run[-1] == (10, 7) for run in slices) > 30


def test_state_round_trip_and_settings() -> None:
    def make() -> ReplayBuffer:
        return buffer_of(_sampler(20, alpha=0.7, slice_len=3), capacity=20)

    first, second = make(), make()
    for number in range(5):
        first.extend(episode_rows([6], first=number))
    first.update_priority(torch.arange(20), torch.rand(20, generator=torch.Generator().manual_seed(1)))
    second.load_state_dict(first.state_dict())
    for _ in range(100):
        one, two = first.sample(6), second.sample(6)
        assert torch.equal(one["index"], two["index"])
        assert torch.equal(one["priority_weight"], two["priority_weight"])
    sampler = first.sampler
    assert isinstance(sampler, PrioritizedSliceSampler)
    sampler.beta = 0.0
    assert set(first.sample(6)["priority_weight"].tolist()) == {1.0}
    sampler.alpha = 0.0
    assert (sampler.alpha, sampler.beta, sampler.eps, sampler.max_size) == (0.0, 0.0, 0.0, 20)


def test_what_no_batch_can_be_made_of() -> None:
    buffer = _with_priorities(_sampler(slice_len=3), [2, 2], [1.0] * 4)
    assert not buffer.can_sample(3)
    with pytest.raises(EmptyBufferError, match=r"slice length \(3\) must be at most the 2 steps"):
        buffer.sample(3)
    buffer = _with_priorities(_sampler(slice_len=3), [2, 4], [1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    with pytest.raises(PriorityError, match="episodes of 3 steps or more"):
        buffer.sample(3)
    buffer = _with_priorities(_sampler(slice_len=2), [3], [0.0] * 3)
    assert not buffer.can_sample(2)
    with pytest.raises(PriorityError, match="must not all be zero"):
        buffer.sample(2)


def test_the_seed_decides_and_numpy_is_left_alone() -> None:
    before = np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]
    draws = [buffer_of(_sampler(slice_len=2), episode_rows([9, 9])).sample(8)["index"].tolist() for _ in range(2)]
    assert draws[0] == draws[1]
    assert before == np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]


def test_a_sampler_from_shared_memory_can_be_written_to() -> None:
    sampler = _sampler(20, slice_len=3, max_priority_within_buffer=True)
    parts: list[bytes] = []
    data = pickle.dumps(sampler, 5, buffer_callback=lambda part: parts.append(bytes(part)))
    buffer = buffer_of(pickle.loads(data, buffers=parts), episode_rows([9]), capacity=20)
    buffer.update_priority(torch.arange(9), torch.arange(9))
    assert_runs(slices_in(buffer.sample(6)))
