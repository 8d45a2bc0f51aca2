"""RandomSampler: every record as likely as any other."""

from __future__ import annotations

import torch

from replay_service.buffer.samplers.random import RandomSampler
from replay_service.buffer.storages.lazy_tensor import LazyTensorStorage
from tests.contracts.sampler import SamplerContract


class TestRandomSampler(SamplerContract):
    def make(self, capacity: int) -> RandomSampler:
        return RandomSampler()


def _storage(rows: int) -> LazyTensorStorage:
    storage = LazyTensorStorage(rows)
    storage.set(range(rows), torch.arange(rows))
    storage.generator = torch.Generator().manual_seed(0)
    return storage


def test_draws_are_uniform() -> None:
    records, info = RandomSampler().sample(_storage(10), 100_000)
    counts = torch.bincount(records, minlength=10).to(torch.float64)
    chi_square = float(((counts - 10_000) ** 2 / 10_000).sum())
    assert chi_square < 33.7  # 9 degrees of freedom, one in ten thousand
    assert info == {}


def test_more_draws_than_records() -> None:
    records, _ = RandomSampler().sample(_storage(2), 50)
    assert set(records.tolist()) == {0, 1}


def test_lanes_are_drawn_alike() -> None:
    storage = LazyTensorStorage(6, ndim=2)
    storage.set(range(3), torch.arange(6).view(3, 2))
    storage.generator = torch.Generator().manual_seed(0)
    records, _ = RandomSampler().sample(storage, 200)
    assert set(records.tolist()) == set(range(6))
