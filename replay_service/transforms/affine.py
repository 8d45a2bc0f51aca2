"""Entries moved and scaled, and back again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from replay_service.transforms.entrywise import Entrywise

__all__ = ["Affine"]


class Affine(Entrywise):
    """Base of transforms that compute `value * scale + loc`, or with `standard_normal` `(value - loc) / scale`.

    Floating-point entries keep their dtype, and others become float32.

    Args:
        loc, scale: numbers, or tensors that broadcast to an entry's `[B, *shape]` from the right.
        standard_normal: `loc` and `scale` are mean and standard deviation, to be taken out.
        **keys: as `Entrywise`.

    Raises:
        ValueError: a number is not finite, or a `scale` of 0 would have to be divided by.
    """

    def __init__(self, loc: float | Tensor, scale: float | Tensor, standard_normal: bool, **keys: Any) -> None:
        super().__init__(**keys)
        self.loc = _finite("loc", loc)
        self.scale = _finite("scale", scale)
        self.standard_normal = standard_normal
        if (standard_normal or self.in_keys_inv) and bool((self.scale == 0).any()):
            raise ValueError("scale must not be 0 where it is divided by, with standard_normal or in_keys_inv")

    def apply(self, value: Tensor) -> Tensor:
        """Moves and scales."""
        return self._unscaled(value) if self.standard_normal else self._scaled(value)

    def undo(self, value: Tensor) -> Tensor:
        """The value of which `apply` makes this one."""
        return self._scaled(value) if self.standard_normal else self._unscaled(value)

    def _scaled(self, value: Tensor) -> Tensor:
        number, loc, scale = self._fitted(value)
        return number * scale + loc

    def _unscaled(self, value: Tensor) -> Tensor:
        number, loc, scale = self._fitted(value)
        return (number - loc) / scale

    def _fitted(self, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        number = value if value.is_floating_point() else value.to(torch.float32)
        return number, self.loc.to(number), self.scale.to(number)


def _finite(name: str, value: float | Tensor) -> Tensor:
    given = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device="cpu")
    made = given.to(torch.float64)
    if not bool(made.isfinite().all()):
        raise ValueError(f"{name} ({made.tolist()}) must be finite")
    return made
