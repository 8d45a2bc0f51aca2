"""SplitSampler: the same part of every batch from the first of two storages."""

from __future__ import annotations

import math

import pytest
import torch

from replay_service import EmptyBufferError, LazyTensorStorage, RandomSampler, StorageEnsemble
from replay_service.buffer.samplers.split import SplitSampler


def _storage(first: int, second: int) -> StorageEnsemble:
    parts = (LazyTensorStorage(20), LazyTensorStorage(20))
    for part, rows in zip(parts, (first, second), strict=True):
        part.set(range(rows), torch.arange(rows))
        part.generator = torch.Generator().manual_seed(0)
    return StorageEnsemble(*parts)


def _split(fraction: float) -> SplitSampler:
    return SplitSampler(RandomSampler(), RandomSampler(), fraction)


@pytest.mark.parametrize(
    ("fraction", "sizes", "parts"),
    [
        (0.25, (5, 5), [(0, 2), (1, 6)]),
        (0.5, (5, 5), [(0, 4), (1, 4)]),
        (0.0, (5, 5), [(1, 8)]),
        (1.0, (5, 5), [(0, 8)]),
        (0.01, (5, 5), [(1, 8)]),
        (0.5, (5, 0), [(0, 8)]),
        (0.0, (5, 0), [(0, 8)]),
        (0.5, (0, 5), [(1, 8)]),
    ],
)
def test_parts(fraction: float, sizes: tuple[int, int], parts: list[tuple[int, int]]) -> None:
    sampler, storage = _split(fraction), _storage(*sizes)
    assert sampler.allot(storage, 8) == parts
    assert sampler.can_sample(storage, 8)
    assert storage.split(sampler.sample(storage, 8)[0])[0].tolist() == [m for m, rows in parts for _ in range(rows)]


def test_nothing_to_draw() -> None:
    assert not _split(0.5).can_sample(_storage(0, 0), 8)
    with pytest.raises(EmptyBufferError, match="none in either"):
        _split(0.5).allot(_storage(0, 0), 8)


def test_the_fraction_is_part_of_the_state() -> None:
    sampler, other = _split(0.5), _split(0.5)
    sampler.fraction = 0.125
    other.load_state_dict(sampler.state_dict())
    assert other.fraction == 0.125


@pytest.mark.parametrize("fraction", [-0.1, 1.1, math.nan, math.inf])
def test_what_is_no_fraction_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match="fraction"):
        _split(fraction)
