"""Late writes as a buffer offers them: as futures, told to the sampler, and to single records of lanes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service import (
    LayoutError,
    LazyTensorStorage,
    RandomSampler,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from tests.buffer.versioned_rows import held_handles, state_patch, versioned_buffer, versioned_rows


def test_submitted_updates_are_done() -> None:
    buffer = versioned_buffer()
    future = buffer.submit_update_if_present(**held_handles(buffer, 0), patch=state_patch(3))
    assert future.done()
    assert future.result(timeout=0).updated_count == 1
    refused = buffer.submit_update_if_present(**held_handles(buffer, 0), patch={"nothing": torch.zeros(1)})
    assert refused.done()
    with pytest.raises(LayoutError, match="nothing"):
        refused.result()


def test_the_sampler_hears_of_the_patched_records_alone() -> None:
    told: list[list[int]] = []

    class Telling(RandomSampler):
        def mark_update(self, index: torch.Tensor, *, storage: Any = None) -> None:
            told.append(index.tolist())

    buffer = versioned_buffer(capacity=4, sampler=Telling())
    held = held_handles(buffer, 0, 3)
    buffer.extend(versioned_rows(1))
    buffer.update_if_present(**held, patch=state_patch(1, 2))
    assert told == [[3]]


def test_lanes_are_patched_one_by_one() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(8, ndim=2),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        dim_extend=0,
        generator=torch.Generator().manual_seed(0),
    )
    buffer.extend(TensorDict({"x": torch.zeros(4, 2), "v": torch.zeros(4, 2, dtype=torch.int64)}, [4, 2]))
    sample = buffer.sample(6)
    call = {"generation": sample["index_generation"], "patch": {"x": torch.arange(1.0, 7.0)}}
    first = buffer.update_if_present(index=sample["index"], **call)
    assert first.updated_count == 6
    stacked = buffer[:]["x"]
    _, info = buffer.sample(2, return_info=True)
    assert isinstance(info["index"], tuple)
    assert stacked[tuple(sample["index"].unbind(1))][-1] == 6
    versioned = buffer.update_if_present(index=tuple(sample["index"].unbind(1)), **call, version_key="v", version=2)
    assert int(versioned.updated.sum()) == len({tuple(pair) for pair in sample["index"].tolist()})
    buffer.extend(TensorDict({"x": torch.zeros(4, 2), "v": torch.zeros(4, 2, dtype=torch.int64)}, [4, 2]))
    assert buffer.update_if_present(index=sample["index"], **call).stale_count == 6
    with pytest.raises(ValueError, match=r"index \(1 coordinates\) must have 2"):
        buffer.update_if_present(index=torch.tensor([0]), generation=torch.tensor([0]), patch={"x": torch.zeros(1)})
