"""Parts that are gathered straight into their batch: the same batches as those that each buffer makes its part of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDictBase

from replay_service import (
    LazyTensorStorage,
    ListStorage,
    OfflineToOnlineReplayBuffer,
    PrioritizedSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    Sequence,
    SliceSampler,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from replay_service.arena import Arena
from replay_service.buffer.ensemble.gathering import Gathered, gathered
from tests.buffer.ensembles import member
from tests.rows import stamped_rows

Make = Callable[[int], ReplayBuffer]


def _filled(place: int, **parts: Any) -> TensorDictReplayBuffer:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(60), writer=TensorDictRoundRobinWriter(track_generations=True), **parts
    )
    buffer.extend(stamped_rows(50, stamp=100 * place))
    return buffer


def _lanes(place: int) -> TensorDictReplayBuffer:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(40, ndim=2))
    buffer.extend(torch.stack([stamped_rows(9, stamp=100 * place), stamped_rows(9, stamp=100 * place + 50)]))
    return buffer


def _tensors(place: int) -> ReplayBuffer:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10))
    buffer.extend(torch.full((7, 3), place))
    return buffer


KINDS: dict[str, Make] = {
    "uniform": _filled,
    "prioritized": lambda place: _filled(place, sampler=PrioritizedSampler(60, 1.0, 1.0)),
    "slices": lambda place: _filled(place, sampler=SliceSampler(slice_len=4, strict_length=False, pad_output=True)),
    "windows": lambda place: _filled(place, sample_unit=Sequence(length=3)),
    "lanes": _lanes,
    "plain": lambda place: _plain(place),
    "tensors": _tensors,
}


def _plain(place: int) -> ReplayBuffer:
    buffer = ReplayBuffer(storage=LazyTensorStorage(60), sampler=SliceSampler(slice_len=2, strict_length=True))
    buffer.extend(stamped_rows(50, stamp=100 * place))
    return buffer


def _same(batch: Any) -> Any:
    return batch


def _pairs(make: Make) -> list[tuple[Any, Any]]:
    """Buffers of each kind that gather, and twins whose members make their own parts."""
    pairs = []
    for form in ("stacked", "one behind the other"):
        made = []
        for makes_parts in (False, True):
            members = [make(0), make(1)]
            if makes_parts:
                members[0].append_transform(_same)
            generator = torch.Generator().manual_seed(3)
            if form == "stacked":
                made.append(ReplayBufferEnsemble(*members, batch_size=8, sample_from_all=True, generator=generator))
            else:
                rb = OfflineToOnlineReplayBuffer(
                    members[0], online_storage=members[1].storage, batch_size=8, generator=generator
                )
                made.append(rb)
        pairs.append((made[0], made[1]))
    return pairs


@pytest.mark.parametrize("kind", KINDS)
def test_the_way_makes_no_difference(kind: str) -> None:
    for gathers, makes in _pairs(KINDS[kind]):
        for _ in range(5):
            (one, said), (other, meant) = (rb.sample(return_info=True) for rb in (gathers, makes))
            assert type(one) is type(other)
            assert said.keys() == meant.keys()
            if isinstance(one, TensorDictBase):
                assert one.batch_size == other.batch_size
                assert set(one.keys(True, True)) == set(other.keys(True, True))
            assert (one == other).all()
            assert all((said[name] == meant[name]).all() for name in said)


def _picks(*buffers: ReplayBuffer) -> list[Any]:
    return [(buffer, buffer.pick(4)) for buffer in buffers]


@pytest.mark.parametrize("stacks", [True, False])
def test_one_copy(stacks: bool) -> None:
    draws = _picks(member(0, 9), member(1, 9))
    found = gathered(draws, Arena(), stacks)
    assert isinstance(found, Gathered)
    assert found.batch.batch_size == ((2, 4) if stacks else (8,))
    wanted = torch.cat([buffer.read(pick) for buffer, pick in draws])
    assert (found.batch.reshape(-1) == wanted).all()


def test_what_has_to_be_made_by_its_buffer() -> None:
    changed, listed = member(0, 9), TensorDictReplayBuffer(storage=ListStorage(9))
    changed.append_transform(_same)
    listed.extend(stamped_rows(9))
    other = TensorDictReplayBuffer(storage=LazyTensorStorage(9))
    other.extend(stamped_rows(9).exclude("action"))
    weighted = member(0, 9, sampler=PrioritizedSampler(10, 1.0, 1.0))
    for odd in (changed, listed, other, weighted):
        for pair in ((member(1, 9), odd), (odd, member(1, 9))):
            assert gathered(_picks(*pair), Arena(), True) is None
    one, two = member(0, 9), member(1, 9)
    uneven = [(one, one.pick(3)), (two, two.pick(4))]
    assert gathered(uneven, Arena(), True) is None
    assert gathered(uneven, Arena(), False) is not None
