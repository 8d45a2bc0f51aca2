"""SamplerEnsemble: which storages a batch is drawn from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from replay_service import (
    EmptyBufferError,
    LazyTensorStorage,
    PrioritizedSampler,
    RandomSampler,
    SamplerEnsemble,
    SamplerWithoutReplacement,
    StorageEnsemble,
)


def _storage(*rows: int) -> StorageEnsemble:
    parts = [LazyTensorStorage(20) for _ in rows]
    storage = StorageEnsemble(*parts)
    storage.generator = torch.Generator().manual_seed(0)
    for place, (part, count) in enumerate(zip(parts, rows, strict=True)):
        part.generator = torch.Generator().manual_seed(place)
        part.set(range(count), torch.arange(count))
    return storage


def _uniform(count: int, **settings: Any) -> SamplerEnsemble:
    return SamplerEnsemble(*(RandomSampler() for _ in range(count)), **settings)


def test_parts_are_drawn_by_p() -> None:
    storage = _storage(5, 5, 5)
    parts = [member for _ in range(300) for member, _ in _uniform(3, p=[1, 0, 3]).allot(storage, 6)]
    assert set(parts) == {0, 2}
    assert 0.7 < parts.count(2) / len(parts) < 0.8


def test_sampleable_is_in_proportion_to_what_can_be_drawn() -> None:
    storage, sampler = _storage(15, 0, 5), _uniform(3, p="sampleable", num_buffer_sampled=1)
    parts = [sampler.allot(storage, 4)[0] for _ in range(600)]
    assert {rows for _, rows in parts} == {4}
    assert 0.68 < [member for member, _ in parts].count(0) / 600 < 0.82
    assert not any(member == 1 for member, _ in parts)
    with pytest.raises(EmptyBufferError):
        sampler.allot(_storage(0, 0, 0), 4)


def test_records_are_named_for_the_ensemble() -> None:
    storage = _storage(5, 5)
    records, info = _uniform(2, sample_from_all=True).sample(storage, 8)
    members, local = storage.split(records)
    assert members.tolist() == [0] * 4 + [1] * 4
    assert (int(local.max()) < 5, info) == (True, {})


def test_only_what_all_say_is_said() -> None:
    both = [PrioritizedSampler(20, 1.0, 1.0) for _ in range(2)]
    for sampler in both:
        sampler.extend(torch.arange(5))
    _, info = SamplerEnsemble(*both).sample(_storage(5, 5), 8)
    assert info["priority_weight"].shape == (8,)
    assert SamplerEnsemble(both[0], RandomSampler(), sample_from_all=True).sample(_storage(5, 5), 8)[1] == {}


def test_readiness() -> None:
    assert _uniform(2).can_sample(_storage(0, 3), 4)
    assert not _uniform(2).can_sample(_storage(0, 0), 4)
    assert not _uniform(2).can_sample(_storage(3, 3), 5)
    assert not _uniform(2, p=[1, 1]).can_sample(_storage(0, 3), 4)
    assert _uniform(2, p=[0, 1]).can_sample(_storage(0, 3), 4)
    assert not _uniform(2, sample_from_all=True).can_sample(_storage(0, 3), 4)
    assert _uniform(2).remaining(_storage(2, 3)) == 5


def test_priorities_go_to_their_samplers() -> None:
    kept = PrioritizedSampler(20, 1.0, 1.0, eps=0.0)
    kept.extend(torch.arange(5))
    storage, sampler = _storage(5, 5), SamplerEnsemble(RandomSampler(), kept)
    assert (sampler.keeps_priorities, sampler.default_priority, _uniform(2).keeps_priorities) == (True, 1.0, False)
    records = torch.cat([storage.joined(0, torch.tensor([1])), storage.joined(1, torch.tensor([3]))])
    sampler.update_priority(records, torch.tensor([5.0, 6.0], dtype=torch.float64), storage=storage)
    assert kept.priorities().tolist() == [1.0, 1.0, 1.0, 6.0, 1.0]
    with pytest.raises(TypeError, match="StorageEnsemble"):
        sampler.update_priority(records, torch.ones(2))


def test_settings_can_be_changed() -> None:
    sampler = _uniform(2)
    assert (sampler.p, sampler.num_buffer_sampled, len(sampler)) == (None, 2, 2)
    sampler.p = torch.tensor([1, 4])
    assert sampler.p.tolist() == pytest.approx([0.2, 0.8])
    sampler.num_buffer_sampled = 3
    assert len(sampler.allot(_storage(2, 2), 9)) == 3
    with pytest.raises(ValueError, match="p "):
        sampler.p = [1, float("inf")]
    assert sampler.p.tolist() == pytest.approx([0.2, 0.8])


def test_states_come_back(tmp_path: Path) -> None:
    storage = _storage(9, 9)
    sampler = SamplerEnsemble(SamplerWithoutReplacement(), RandomSampler(), sample_from_all=True)
    sampler.sample(storage, 8)
    sampler.dumps(tmp_path / "samplers")
    others = [SamplerEnsemble(SamplerWithoutReplacement(), RandomSampler(), sample_from_all=True) for _ in range(2)]
    others[0].load_state_dict(sampler.state_dict())
    others[1].loads(tmp_path / "samplers")
    wanted = sampler[0].sample(storage[0], 5)[0].tolist()
    assert [other[0].sample(storage[0], 5)[0].tolist() for other in others] == [wanted, wanted]
    sampler.empty()
    assert sampler[0].state_dict()["order"].numel() == 0


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: SamplerEnsemble(), ValueError),
        (lambda: SamplerEnsemble(3), TypeError),  # type: ignore[arg-type]
        (lambda: _uniform(2, p=[1, 1], sample_from_all=True), ValueError),
        (lambda: _uniform(2, num_buffer_sampled=1.5), TypeError),
        (lambda: _uniform(2).sample(LazyTensorStorage(4), 4), TypeError),
    ],
)
def test_what_is_no_ensemble_is_refused(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make()
