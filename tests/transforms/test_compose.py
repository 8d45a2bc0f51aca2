"""Transforms one after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service.transforms import Compose, ObservationNorm, RewardScaling, SelectKeys


def batch() -> TensorDict:
    following = TensorDict({"reward": torch.ones(3, 1), "observation": torch.zeros(3, 2)}, [3])
    return TensorDict({"observation": torch.zeros(3, 2), "next": following}, [3])


def test_out_goes_first_to_last_and_in_last_to_first() -> None:
    def note(data: Any) -> Any:
        return data.set("seen", data["observation"].clone())

    keys = {"in_keys": "observation", "in_keys_inv": "observation"}
    both = Compose(ObservationNorm(1.0, 2.0, **keys), note, ObservationNorm(0.0, 3.0, **keys))  # type: ignore[arg-type]
    out = both(batch())
    assert out["observation"][0, 0] == 3.0
    assert out["seen"][0, 0] == 1.0
    assert both.inv(out)["observation"][0, 0] == 0.0
    assert both.has_inverse
    assert not Compose(RewardScaling(0.0, 1.0), note).has_inverse


def test_it_is_a_list_of_transforms() -> None:
    scaling, select = RewardScaling(0.0, 2.0), SelectKeys("next")
    both = Compose(scaling)
    both.append(select)
    both.insert(0, both)
    assert list(both)[1:] == [scaling, select]
    assert len(both) == 3
    both = Compose(scaling, Compose(select))
    assert both[0] is scaling
    assert both.transforms[1][0] is select
    assert set(both(batch()).keys()) == {"next"}


def test_what_is_no_transform_is_refused() -> None:
    with pytest.raises(TypeError, match="must be a function or have a forward; got int"):
        Compose(3)
