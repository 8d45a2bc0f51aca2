"""Rewards, moved and scaled."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from replay_service.transforms.affine import Affine
from replay_service.transforms.transform import Keys

__all__ = ["RewardScaling"]


class RewardScaling(Affine):
    """`reward * scale + loc`, or with `standard_normal` `(reward - loc) / scale`; records keep the reward as it was.

    Args:
        loc, scale: numbers, or tensors that broadcast to an entry's `[B, *shape]` from the right.
        in_keys: entries to scale; None: `("next", "reward")`.
        out_keys: where the results go; None: in place.
        standard_normal: `loc` and `scale` are mean and standard deviation, to be taken out.

    Raises:
        ValueError: a number is not finite, or `scale` is 0 with `standard_normal`.
    """

    def __init__(
        self,
        loc: float | Tensor,
        scale: float | Tensor,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        standard_normal: bool = False,
    ) -> None:
        super().__init__(loc, scale, standard_normal, in_keys=in_keys, out_keys=out_keys, default=[("next", "reward")])

    def __repr__(self) -> str:
        return f"RewardScaling(loc={_shown(self.loc)}, scale={_shown(self.scale)}, in_keys={self.in_keys})"


def _shown(value: Tensor) -> Any:
    return value.tolist()
