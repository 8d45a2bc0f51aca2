"""Slices, windows and groups of a buffer that lives in a Ray actor, through its handles."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from replay_service import (
    EmptyBufferError,
    LazyTensorStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    PromptGroupSampler,
    Sequence,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    StreamingSliceSampler,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from tests.buffer.episode_rows import assert_runs, episode_rows, slices_in
from tests.wire.serving import House


def _recipe(**settings: Any) -> Any:
    return partial(TensorDictReplayBuffer, storage=partial(LazyTensorStorage, 40), batch_size=12, **settings)


@pytest.mark.parametrize("transport", ["ray", "distributed"])
def test_every_slice_sampler_through_a_handle(guest_house: House, transport: str) -> None:
    owner = guest_house.host(_recipe(sampler=partial(SliceSampler, slice_len=4)), transport)
    client = owner.client()
    with pytest.raises(EmptyBufferError):
        client.sample()
    for number in range(9):  # around the ring
        rows = episode_rows([7], first=number)
        rows["is_init"] = torch.zeros(7, dtype=torch.bool)
        client.extend(rows)
    sample, info = client.sample(return_info=True)
    assert_runs(slices_in(sample))
    assert sample["is_init"].tolist() == [True, False, False, False] * 3
    assert torch.equal(info["next", "truncated"], sample["next", "truncated"])
    assert torch.equal(info["next", "done"], sample["next", "done"])
    for _ in range(20):
        assert_runs(slices_in(client.sample(24)))

    owner.set_sampler(SliceSampler(slice_len=8, strict_length=False, pad_output=True))
    sample, info = client.sample(16, return_info=True)
    assert torch.equal(sample["collector", "mask"], info["collector", "mask"])
    assert sample["collector", "mask"].view(2, 8).sum(1).max() <= 7

    owner.set_sampler(SliceSamplerWithoutReplacement(slice_len=4))
    epoch = [run for _ in range(2) for run in slices_in(client.sample())]
    assert_runs(epoch)
    # What is left of the oldest episode, 5 steps of 7, and five whole ones.
    assert sorted(run[0][0] for run in epoch) == [3, 4, 5, 6, 7, 8]

    owner.set_sampler(StreamingSliceSampler(slice_len=3))
    assert [run[0] for run in slices_in(client.sample(6))] == [(3, 2), (4, 0)]

    owner.set_sampler(PrioritizedSliceSampler(40, 1.0, 1.0, eps=0.0, slice_len=4))
    newest = (9 * 7 - 1) % 40
    client.update_priority(torch.arange(40), torch.arange(40) == newest)
    sample = client.sample()
    assert slices_in(sample) == [[(8, step) for step in range(3, 7)]] * 3
    assert sample["priority_weight"].tolist() == [1.0] * 12

    owner.set_sampler(PromptGroupSampler(num_groups=3, group_key="number"))
    groups = client.sample()["number"].view(3, 4)
    assert (groups == groups[:, :1]).all()
    assert groups[:, 0].unique().numel() == 3


@pytest.mark.parametrize("transport", ["ray", "distributed"])
def test_windows_and_their_priorities_through_a_handle(guest_house: House, transport: str) -> None:
    recipe = _recipe(
        sampler=partial(PrioritizedSampler, 40, 1.0, 1.0, eps=0.0),
        sample_unit=partial(Sequence, 3, "stop", burn_in=1),
        writer=partial(TensorDictRoundRobinWriter, track_generations=True),
    )
    with guest_house.host(recipe, transport).client() as client:
        client.extend(episode_rows([6, 4]))
        client.update_priority(torch.arange(10), torch.arange(10) == 5)
        sample, info = client.sample(2, return_info=True)
        assert sample["step"].tolist() == [2, 3, 4, 5] * 2
        assert sample["learning_mask"].tolist() == [False, True, True, True] * 2
        assert bool(sample["validity_mask"].all())
        assert info["anchor_index"].tolist() == sample["anchor_index"].tolist() == [5] * 8
        sample["td_error"] = torch.arange(8.0)
        assert client.update_tensordict_priority(sample).updated_count == 2
        client.update_priority(torch.tensor([9]), torch.tensor([7.0]))
        anchors = client.sample(300)["anchor_index"][::4]
        assert 0.35 < float((anchors == 5).float().mean()) < 0.65  # 7 beside 7: the last of two priorities stands
