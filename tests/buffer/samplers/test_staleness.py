"""StalenessAwareSampler: fresh records more often, stale ones never."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service import (
    EmptyBufferError,
    LazyTensorStorage,
    ListStorage,
    StalenessAwareSampler,
    TensorDictReplayBuffer,
)
from tests.contracts.sampler import SamplerContract


class TestStalenessAwareSampler(SamplerContract):
    def make(self, capacity: int) -> StalenessAwareSampler:
        return StalenessAwareSampler(version_key="action")


def _storage(*versions: int) -> LazyTensorStorage:
    storage = LazyTensorStorage(100)
    storage.set(range(len(versions)), TensorDict({"policy_version": torch.tensor(versions)}, [len(versions)]))
    storage.generator = torch.Generator().manual_seed(0)
    return storage


def _sampler(consumer_version: int, **settings: Any) -> StalenessAwareSampler:
    sampler = StalenessAwareSampler(**settings)
    sampler.consumer_version = consumer_version
    return sampler


def _assert_drawn_as(sampler: StalenessAwareSampler, storage: LazyTensorStorage, weights: list[float]) -> None:
    draws = 100_000
    records, _ = sampler.sample(storage, draws)
    seen = torch.bincount(records, minlength=len(weights)).to(torch.float64) / draws
    expected = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    assert bool(((seen - expected).abs() <= 4 * (expected * (1 - expected) / draws).sqrt()).all())


def test_weights_fall_with_staleness() -> None:
    storage, sampler = _storage(0, 3, 4, 5), _sampler(5)
    _assert_drawn_as(sampler, storage, [1 / 6, 1 / 3, 1 / 2, 1])
    records, info = sampler.sample(storage, 50)
    assert torch.equal(info["staleness"], torch.tensor([5.0, 2.0, 1.0, 0.0])[records])


def test_stale_records_are_never_drawn() -> None:
    storage, sampler = _storage(0, 3, 4, 5), _sampler(5, max_staleness=1)
    _assert_drawn_as(sampler, storage, [0, 0, 1 / 2, 1])
    sampler.max_staleness = -1
    assert 0 in sampler.sample(storage, 1000)[0].tolist()
    sampler.max_staleness = 0
    sampler.increment_consumer_version()
    assert sampler.consumer_version == 6
    assert not sampler.can_sample(storage, 1)
    with pytest.raises(EmptyBufferError, match=r"max_staleness \(0\) must leave a record to draw; got 4 staler ones"):
        sampler.sample(storage, 1)


def test_records_newer_than_the_consumer_are_fresh() -> None:
    _assert_drawn_as(_sampler(2, max_staleness=0), _storage(1, 2, 7), [0, 1, 1])


def test_ones_own_weights() -> None:
    seen = []

    def weigh(staleness: torch.Tensor) -> torch.Tensor:
        seen.append(staleness.tolist())
        return 0.5**staleness

    _assert_drawn_as(_sampler(4, max_staleness=3, staleness_weight_fn=weigh), _storage(0, 2, 4), [0, 1 / 4, 1])
    assert seen == [[2.0, 0.0]]
    for wrong in (-1.0, float("nan"), float("inf"), 0.0):
        with pytest.raises(ValueError, match="staleness_weight_fn must give weights"):
            _sampler(4, staleness_weight_fn=lambda s, wrong=wrong: torch.full_like(s, wrong)).sample(_storage(1), 1)


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_writes_and_changes_are_noticed(storage: Any) -> None:
    sampler = _sampler(3, max_staleness=0, version_key=("collector", "version"))
    buffer = TensorDictReplayBuffer(storage=storage(4), sampler=sampler, batch_size=40)

    def rows(*versions: int) -> TensorDict:
        count = len(versions)
        return TensorDict({"collector": {"version": torch.tensor(versions)}, "x": torch.arange(count)}, [count])

    buffer.extend(rows(3, 1, 1))
    assert set(buffer.sample()["index"].tolist()) == {0}
    buffer.extend(rows(1, 3))  # around the ring
    buffer.extend(rows(1, 1, 1, 1))
    with pytest.raises(EmptyBufferError):
        buffer.sample()
    buffer[2] = rows(3)[0]
    assert set(buffer.sample()["index"].tolist()) == {2}
    buffer.empty()
    buffer.extend(rows(1, 3))
    sample = buffer.sample()
    assert set(sample["index"].tolist()) == {1}
    assert bool((sample["staleness"] == 0).all())


def test_a_missing_or_wrong_version() -> None:
    storage = LazyTensorStorage(4)
    storage.set(range(2), TensorDict({"x": torch.zeros(2, 3)}, [2]))
    with pytest.raises(KeyError, match="policy_version"):
        StalenessAwareSampler().sample(storage, 1)
    with pytest.raises(ValueError, match=r"version_key \(x\) must hold one number per record"):
        StalenessAwareSampler(version_key="x").sample(storage, 1)
    listed = ListStorage(4)
    listed.set(range(1), [1])
    with pytest.raises(KeyError, match="policy_version"):
        StalenessAwareSampler().sample(listed, 1)
    with pytest.raises(ValueError, match=r"max_staleness \(-2\) must be"):
        StalenessAwareSampler(max_staleness=-2)


def test_one_number_may_have_a_dimension_of_its_own() -> None:
    storage = LazyTensorStorage(4)
    storage.set(range(2), TensorDict({"policy_version": torch.tensor([[1], [9]])}, [2]))
    assert set(_sampler(9, max_staleness=2).sample(storage, 20)[0].tolist()) == {1}


def test_state_holds_versions() -> None:
    state = _sampler(7, max_staleness=2).state_dict()
    other = StalenessAwareSampler()
    other.load_state_dict(state)
    assert (other.consumer_version, other.max_staleness) == (7, 2)
