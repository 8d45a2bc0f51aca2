"""The first steps of sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from replay_service.transforms import BurnIn
from tests.transforms.episode_steps import episodes


class Counting(torch.nn.Module):
    """A recurrent state that adds up observations."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, data: Any) -> Any:
        data["next", "hidden"] = (data["observation"] * self.weight).cumsum(1)
        return data


def lines() -> TensorDict:
    return TensorDict({"observation": torch.arange(24.0).view(2, 6, 2)}, [2, 6])


def test_the_state_after_the_first_steps_goes_to_the_first_that_is_left() -> None:
    out = BurnIn(Counting(), 2, "hidden")(lines())
    assert out.batch_size == (2, 4)
    assert out["observation"].tolist() == lines()["observation"][:, 2:].tolist()
    assert out["hidden"][:, 0].tolist() == lines()["observation"][:, :2].sum(1).tolist()
    assert out["hidden"][:, 1:].abs().max() == 0
    assert not out["hidden"].requires_grad


def test_stored_states_stay_but_for_the_first() -> None:
    data = lines().set("hidden", torch.full((2, 6, 2), 5.0))
    out = BurnIn([Counting()], 2, "hidden")(data)
    assert (out["hidden"][:, 1:] == 5).all()
    assert (data["hidden"] == 5).all()


def test_flat_slices_come_back_flat_and_their_info_follows() -> None:
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100), sampler=SliceSampler(slice_len=6, end_key=("next", "done")), batch_size=24,
        transform=BurnIn([], 2, slice_len=6), generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    rb.extend(episodes(20, 9, 30))
    sample, info = rb.sample(return_info=True)
    assert sample.batch_size == (16,)
    assert torch.equal(info["index"], sample["index"])
    assert torch.equal(rb.storage.get(info["index"])["observation"], sample["observation"])
    assert sample["next", "truncated"].view(4, 4).tolist() == [[False] * 3 + [True]] * 4


def test_batches_that_are_no_sequences_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must be \[B, T\], or flat with slice_len"):
        BurnIn([], 2)(lines().reshape(-1))
    with pytest.raises(ValueError, match=r"slice_len .5. dividing"):
        BurnIn([], 2, slice_len=5)(lines().reshape(-1))
    with pytest.raises(ValueError, match="less than the length"):
        BurnIn([], 6)(lines())
    with pytest.raises(ValueError, match="must come with the modules"):
        BurnIn([], 2, "hidden")
    with pytest.raises(KeyError, match=r"next\.state"):
        BurnIn(Counting(), 2, "state")(lines())
    assert BurnIn([], 0)(lines()).batch_size == (2, 6)
