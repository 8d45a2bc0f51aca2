"""Moved and scaled entries, rewards and observations among them."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from replay_service.transforms import ObservationNorm, RewardScaling
from tests.transforms.episode_steps import episode


def test_rewards_are_scaled_and_moved() -> None:
    data = episode(3)
    assert RewardScaling(0.5, 2.0)(data)["next", "reward"].flatten().tolist() == [2.5, 4.5, 6.5]
    assert RewardScaling(1.0, 2.0, standard_normal=True)(data)["next", "reward"].flatten().tolist() == [0.0, 0.5, 1.0]
    assert data["next", "reward"].flatten().tolist() == [1, 2, 3]


def test_dtypes_are_kept_and_integers_become_float32() -> None:
    data = TensorDict({"a": torch.ones(2, dtype=torch.float16), "b": torch.ones(2, dtype=torch.uint8)}, [2])
    out = RewardScaling(0.0, 0.5, in_keys=["a", "b"])(data)
    assert (out["a"].dtype, out["b"].dtype) == (torch.float16, torch.float32)


def test_observations_are_normalised_and_stored_as_they_were() -> None:
    norm = ObservationNorm(torch.tensor([1.0, 2.0]), 4.0, in_keys_inv="observation", standard_normal=True)
    data = episode(4)
    out = norm(data)
    assert torch.equal(out["observation"], (data["observation"] - torch.tensor([1.0, 2.0])) / 4)
    assert torch.allclose(norm.inv(out)["observation"], data["observation"])


def test_statistics_are_those_of_the_data() -> None:
    data = episode(50)
    data["observation"][:, 1] = 7.0
    out = ObservationNorm.fitted(data)(data)
    assert out["observation"][:, 0].mean().item() == pytest.approx(0, abs=1e-6)
    assert out["observation"][:, 0].std(correction=0).item() == pytest.approx(1, abs=1e-6)
    assert out["observation"][:, 1].abs().max() == 0
    assert out["next", "observation"][0, 0] == out["observation"][1, 0]


def test_numbers_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="scale must not be 0"):
        RewardScaling(0.0, 0.0, standard_normal=True)
    with pytest.raises(ValueError, match=r"loc .*must be finite"):
        ObservationNorm(float("nan"), 1.0)
    RewardScaling(1.0, 0.0)
