"""PrioritizedSampler: draws and weights follow their formulas, whatever happened to the priorities before."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from replay_service.buffer.samplers.prioritized import PrioritizedSampler
from replay_service.buffer.storages.lazy_tensor import LazyTensorStorage
from replay_service.buffer.storages.list import ListStorage
from replay_service.errors import EmptyBufferError, PriorityError
from tests.contracts.sampler import SamplerContract


class TestPrioritizedSampler(SamplerContract):
    def make(self, capacity: int) -> PrioritizedSampler:
        return PrioritizedSampler(capacity, alpha=0.7, beta=0.5)


class TestWithinBuffer(SamplerContract):
    def make(self, capacity: int) -> PrioritizedSampler:
        return PrioritizedSampler(capacity, alpha=0.7, beta=0.5, max_priority_within_buffer=True)


def _storage(rows: int, capacity: int | None = None) -> LazyTensorStorage:
    storage = LazyTensorStorage(capacity or rows)
    storage.set(range(rows), torch.arange(rows))
    storage.generator = torch.Generator().manual_seed(0)
    return storage


def _sampler(priorities: Tensor, alpha: float = 0.6, beta: float = 0.4, **settings: Any) -> PrioritizedSampler:
    sampler = PrioritizedSampler(priorities.numel(), alpha, beta, **settings)
    sampler.extend(torch.arange(priorities.numel()))
    sampler.update_priority(torch.arange(priorities.numel()), priorities)
    return sampler


def _probabilities(priorities: Tensor, alpha: float, eps: float = 1e-8) -> Tensor:
    masses = (priorities.to(torch.float64) + eps) ** alpha
    return masses / masses.sum()


def _assert_drawn_as(sampler: PrioritizedSampler, expected: Tensor, draws: int = 200_000) -> None:
    """Every count lies within 3 standard errors (4.5 for the largest of many)."""
    records, _ = sampler.sample(_storage(expected.numel()), draws)
    seen = torch.bincount(records, minlength=expected.numel()).to(torch.float64) / draws
    error = (expected * (1 - expected) / draws).sqrt()
    away = ((seen - expected).abs() / error.clamp_min(1e-300))[expected > 0]
    assert float((away < 3).to(torch.float64).mean()) > 0.95
    assert float(away.max()) < 4.5
    assert int(torch.count_nonzero(seen[expected == 0])) == 0


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0])
def test_draws_follow_the_priorities(alpha: float) -> None:
    priorities = torch.tensor([0.1, 1.0, 2.0, 5.0, 0.5, 3.0])
    _assert_drawn_as(_sampler(priorities, alpha), _probabilities(priorities, alpha))


@pytest.mark.parametrize(("alpha", "beta"), [(0.6, 0.4), (1.0, 1.0), (0.7, 0.0), (0.0, 1.0)])
def test_weights_match_their_formula_and_their_row(alpha: float, beta: float) -> None:
    generator = torch.Generator().manual_seed(3)
    priorities = torch.rand(100, generator=generator) * 10
    sampler = _sampler(priorities, alpha, beta)
    records, info = sampler.sample(_storage(100), 500)
    weights = (100 * _probabilities(priorities, alpha)) ** -beta
    assert info["priority_weight"].dtype == torch.float32
    torch.testing.assert_close(
        info["priority_weight"].to(torch.float64), (weights / weights.max())[records], rtol=1e-5, atol=0
    )


def test_weights_may_be_float64() -> None:
    sampler = _sampler(torch.tensor([1.0, 4.0]), 1.0, 1.0, dtype=torch.float64)
    records, info = sampler.sample(_storage(2), 50)
    assert info["priority_weight"].dtype == torch.float64
    assert set(zip(records.tolist(), info["priority_weight"].round(decimals=6).tolist(), strict=True)) == {
        (0, 1.0),
        (1, 0.25),
    }


def test_many_updates_over_eight_orders_of_magnitude() -> None:
    generator = torch.Generator().manual_seed(5)
    rows = 3000
    sampler = PrioritizedSampler(rows, alpha=1.0, beta=0.4, eps=0.0)
    sampler.extend(torch.arange(rows))
    for _ in range(2000):
        records = torch.randint(0, rows, (64,), generator=generator)
        values = 10 ** (8 * torch.rand(64, generator=generator, dtype=torch.float64) - 4)
        values[torch.rand(64, generator=generator) < 0.3] = 0.0
        sampler.update_priority(records, values)
    state = sampler.state_dict()
    assert torch.equal(state["masses"], state["priorities"])
    zero = (state["priorities"] == 0).nonzero().flatten()
    assert 500 < zero.numel() < 2500
    records, info = sampler.sample(_storage(rows), 200_000)
    assert not torch.isin(records, zero).any()
    assert bool(torch.isfinite(info["priority_weight"]).all())
    # What the sampler draws from is the sum of the leaves, to 1e-9: a draw's probability times the total is its mass.
    total = math.fsum(state["masses"].tolist())
    smallest = float(state["masses"][state["masses"] > 0].min())
    assert sampler.total == pytest.approx(total, rel=1e-9)
    expected = (state["priorities"][records] / smallest) ** -0.4
    torch.testing.assert_close(info["priority_weight"].to(torch.float64), expected, rtol=1e-5, atol=0)


def test_alpha_is_applied_once_to_new_rows() -> None:
    sampler = PrioritizedSampler(10, alpha=0.5, beta=0.4, eps=0.0)
    sampler.extend(torch.arange(4))
    sampler.update_priority(torch.tensor([1]), torch.tensor([16.0]))
    assert sampler.default_priority == 16.0
    sampler.extend(torch.tensor([4]))
    sampler.add(5)
    sampler.mark_update(torch.tensor([0]))
    state = sampler.state_dict()
    assert state["priorities"].tolist() == [16, 16, 1, 1, 16, 16]
    assert state["masses"].tolist() == [4, 4, 1, 1, 4, 4]


def test_new_rows_take_the_largest_priority_so_far() -> None:
    sampler = PrioritizedSampler(4, alpha=0.6, beta=0.4)
    assert sampler.default_priority == 1.0
    sampler.extend(torch.arange(4))
    sampler.update_priority(torch.arange(4), torch.tensor([0.5, 7.0, 2.0, 3.0]))
    sampler.update_priority(torch.tensor([1]), 0.25)
    assert sampler.default_priority == 7.0
    sampler.extend(torch.tensor([2]))
    assert sampler.priorities().tolist() == [0.5, 0.25, 7.0, 3.0]


def test_new_rows_take_the_largest_priority_within_the_buffer() -> None:
    sampler = PrioritizedSampler(4, alpha=0.0, beta=0.4, max_priority_within_buffer=True)
    sampler.extend(torch.arange(4))
    sampler.update_priority(torch.arange(4), torch.tensor([0.5, 7.0, 2.0, 3.0]))
    assert sampler.default_priority == 7.0
    sampler.update_priority(torch.tensor([1]), 0.25)
    assert sampler.default_priority == 3.0
    sampler.extend(torch.tensor([3]))  # overwrites that very row
    assert sampler.priorities().tolist() == [0.5, 0.25, 2.0, 2.0]


def test_exponents_can_be_changed() -> None:
    priorities = torch.tensor([0.1, 1.0, 2.0, 5.0])
    sampler = _sampler(priorities, 0.6, 0.4)
    sampler.alpha, sampler.beta = 1.5, 1.0
    assert (sampler.alpha, sampler.beta) == (1.5, 1.0)
    expected = _probabilities(priorities, 1.5)
    _assert_drawn_as(sampler, expected)
    records, info = sampler.sample(_storage(4), 20)
    torch.testing.assert_close(
        info["priority_weight"].to(torch.float64), (expected.min() / expected)[records], rtol=1e-5, atol=0
    )
    sampler.alpha = 0.0
    _assert_drawn_as(sampler, torch.full((4,), 0.25, dtype=torch.float64))


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, -1e-9])
def test_a_wrong_priority_refuses_the_whole_call(wrong: float) -> None:
    sampler = _sampler(torch.tensor([1.0, 2.0, 3.0]))
    before = sampler.state_dict()
    with pytest.raises(PriorityError, match=r"priority \(.*\) must be finite and not negative"):
        sampler.update_priority(torch.tensor([0, 1]), torch.tensor([9.0, wrong]))
    with pytest.raises(PriorityError):  # also where a reduction would hide it
        sampler.update_priority(torch.tensor([0, 1]), torch.tensor([[9.0, 9.0], [9.0, wrong]]))
    after = sampler.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in ("priorities", "masses"))
    assert sampler.default_priority == 3.0


def test_zero_is_never_drawn_without_eps_and_all_zero_is_refused() -> None:
    storage = _storage(3)
    sampler = _sampler(torch.tensor([1.0, 0.0, 2.0]), eps=0.0)
    assert set(sampler.sample(storage, 10_000)[0].tolist()) == {0, 2}
    sampler.update_priority(torch.arange(3), 0.0)
    assert not sampler.can_sample(storage, 1)
    with pytest.raises(PriorityError, match="must not all be zero"):
        sampler.sample(storage, 1)
    sampler.update_priority(torch.tensor([1]), 1e-300)
    assert set(sampler.sample(storage, 10)[0].tolist()) == {1}


def test_zero_is_still_drawn_with_eps() -> None:
    sampler = _sampler(torch.zeros(3), eps=1e-8)
    _assert_drawn_as(sampler, torch.full((3,), 1 / 3, dtype=torch.float64))


def test_a_record_that_does_not_exist_is_refused() -> None:
    sampler = PrioritizedSampler(10, 0.6, 0.4)
    sampler.extend(torch.arange(3))
    for index in (3, 9, 10, -1):
        with pytest.raises(IndexError, match=rf"index \({index}\) must be in \[0, 3\)"):
            sampler.update_priority(torch.tensor([0, index]), torch.tensor([5.0, 5.0]))
    assert sampler.priorities().tolist() == [1.0, 1.0, 1.0]


def test_the_last_of_a_record_named_twice_stands() -> None:
    sampler = _sampler(torch.ones(3), 1.0, eps=0.0)
    sampler.update_priority(torch.tensor([1, 2, 1]), torch.tensor([5.0, 6.0, 7.0]))
    assert sampler.state_dict()["masses"].tolist() == [1.0, 7.0, 6.0]
    assert sampler.priorities().tolist() == [1.0, 7.0, 6.0]


@pytest.mark.parametrize(("reduction", "expected"), [("max", 4.0), ("min", 1.0), ("mean", 2.25), ("median", 2.0)])
def test_several_priorities_of_a_record_become_one(reduction: str, expected: float) -> None:
    sampler = PrioritizedSampler(4, 0.6, 0.4, reduction=reduction)
    sampler.extend(torch.arange(2))
    sampler.update_priority(torch.tensor([1]), torch.tensor([[4.0, 1.0, 2.0, 2.0]]))
    assert sampler.priorities().tolist() == [1.0, expected]


def test_priorities_beyond_float_range_are_drawn() -> None:
    sampler = _sampler(torch.tensor([1e300, 1e300, 1.0], dtype=torch.float64), alpha=2.0)
    records, info = sampler.sample(_storage(3), 100)
    assert set(records.tolist()) == {0, 1}
    assert bool(torch.isfinite(info["priority_weight"]).all())


def test_writes_around_the_ring_and_in_any_order() -> None:
    sampler = _sampler(torch.arange(1.0, 9.0), 1.0, eps=0.0)
    sampler.extend(torch.tensor([6, 7, 0, 1]))
    assert sampler.priorities().tolist() == [8, 8, 3, 4, 5, 6, 8, 8]
    sampler.update_priority(torch.tensor([0]), 20.0)
    sampler.extend(torch.tensor([5, 3, 7]))
    assert sampler.priorities().tolist() == [20, 8, 3, 20, 5, 20, 8, 20]
    assert sampler.state_dict()["masses"].tolist() == sampler.priorities().tolist()


def test_it_grows_with_its_storage() -> None:
    sampler = PrioritizedSampler(3, 1.0, 0.4, eps=0.0, max_priority_within_buffer=True)
    for record in range(50):
        sampler.add(record)
        sampler.update_priority(torch.tensor([record]), float(record + 1))
    assert sampler.state_dict()["masses"].tolist() == list(range(1, 51))
    assert sampler.max_size >= 50
    assert sampler.default_priority == 50


def test_records_that_another_buffer_emptied_are_not_drawn() -> None:
    storage = _storage(20)
    sampler = _sampler(torch.ones(20), max_priority_within_buffer=True)
    storage.empty()
    storage.set(range(5), torch.arange(5))
    assert set(sampler.sample(storage, 500)[0].tolist()) == set(range(5))
    assert sampler.priorities().numel() == 5


def test_empty_forgets_priorities_and_the_largest() -> None:
    sampler = _sampler(torch.tensor([5.0, 9.0]))
    sampler.empty()
    assert sampler.default_priority == 1.0
    with pytest.raises(EmptyBufferError):
        sampler.sample(LazyTensorStorage(2), 1)
    sampler.add(0)
    assert sampler.priorities().tolist() == [1.0]
    assert sampler.sample(_storage(1), 3)[0].tolist() == [0, 0, 0]


def test_state_is_a_copy_and_draws_go_on_alike() -> None:
    priorities = torch.rand(200, generator=torch.Generator().manual_seed(1))
    sampler = _sampler(priorities, max_priority_within_buffer=True)
    sampler.beta = 0.9
    state = sampler.state_dict()
    other = PrioritizedSampler(8, 0.1, 0.1, max_priority_within_buffer=True)
    other.load_state_dict(state)
    state["priorities"].zero_()
    state["masses"].zero_()
    storages = [_storage(200), _storage(200)]
    for step in range(100):
        (left, left_info), (right, right_info) = (
            one.sample(storage, 32) for one, storage in zip((sampler, other), storages, strict=True)
        )
        assert torch.equal(left, right)
        assert torch.equal(left_info["priority_weight"], right_info["priority_weight"])
        for one in (sampler, other):
            one.update_priority(left[:8], torch.full((8,), 0.1 * step))
            one.extend(torch.tensor([step]))
    assert sampler.default_priority == other.default_priority


def test_a_wrong_state_changes_nothing() -> None:
    sampler = _sampler(torch.tensor([1.0, 2.0]))
    state = sampler.state_dict()
    for name, wrong in (("priorities", torch.tensor([1.0, -1.0])), ("masses", torch.ones(3)), ("alpha", -1.0)):
        with pytest.raises(ValueError, match="must"):
            sampler.load_state_dict({**state, name: wrong})
    with pytest.raises(KeyError):
        sampler.load_state_dict({})
    assert sampler.priorities().tolist() == [1.0, 2.0]


def test_a_storage_without_a_bound() -> None:
    storage = ListStorage()
    storage.set(range(3), [1, 2, 3])
    storage.generator = torch.Generator().manual_seed(0)
    sampler = PrioritizedSampler(storage.max_size, 0.6, 0.4)
    sampler.extend(torch.arange(3))
    assert set(sampler.sample(storage, 100)[0].tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"alpha": -0.1}, ValueError, r"alpha \(-0.1\) must be finite and not negative"),
        ({"beta": math.nan}, ValueError, r"beta \(nan\) must be"),
        ({"eps": -1.0}, ValueError, r"eps \(-1.0\) must be"),
        ({"alpha": "much"}, TypeError, r"alpha \('much'\) must be a number"),
        ({"reduction": "sum"}, ValueError, r"reduction \('sum'\) must be one of"),
        ({"max_capacity": 0}, ValueError, r"max_capacity \(0\) must be a positive integer"),
        ({"max_capacity": 1.5}, TypeError, r"max_capacity \(1.5\) must be a positive integer"),
        ({"dtype": torch.int64}, TypeError, r"dtype \(torch.int64\) must be a floating point"),
        ({"device": "cuda"}, ValueError, r"device \(cuda\) must be cpu"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        PrioritizedSampler(**{"max_capacity": 4, "alpha": 0.6, "beta": 0.4, **settings})
