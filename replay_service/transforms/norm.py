"""Observations, normalised."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from replay_service.specs import Key
from replay_service.transforms.affine import Affine
from replay_service.transforms.transform import Keys, entry, keys_of

__all__ = ["ObservationNorm"]

OBSERVATIONS: tuple[Key, ...] = (("observation",), ("next", "observation"))


class ObservationNorm(Affine):
    """`observation * scale + loc`, or with `standard_normal` `(observation - loc) / scale`.

    Args:
        loc, scale: numbers, or tensors that broadcast to an entry's `[B, *shape]` from the right.
        in_keys: entries to normalise; None: `"observation"` and `("next", "observation")`.
        out_keys: where the results go; None: in place.
        in_keys_inv: entries that are stored as they were before normalisation, although they are extended normalised; None: none.
        out_keys_inv: the entries that those are made of; None: `in_keys_inv`.
        standard_normal: `loc` and `scale` are mean and standard deviation, to be taken out.

    Raises:
        ValueError: a number is not finite, or a `scale` of 0 would have to be divided by.
    """

    def __init__(
        self,
        loc: float | Tensor,
        scale: float | Tensor,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
        standard_normal: bool = False,
    ) -> None:
        super().__init__(
            loc,
            scale,
            standard_normal,
            in_keys=in_keys,
            out_keys=out_keys,
            in_keys_inv=in_keys_inv,
            out_keys_inv=out_keys_inv,
            default=OBSERVATIONS,
        )

    @classmethod
    def fitted(
        cls, data: Any, in_keys: Keys | None = None, *, reduce_dim: int | Iterable[int] = 0, eps: float = 1e-6
    ) -> ObservationNorm:
        """The transform that gives the first of `in_keys` in `data` mean 0 and standard deviation 1, and treats all of them alike.

        Args:
            data: TensorDict `[B, …]` of observations, for example `rb[:]`.
            in_keys: as the constructor's.
            reduce_dim: the dimensions to take mean and deviation over.
            eps: the smallest deviation that counts; what never changes is not blown up.
        """
        keys = keys_of("in_keys", in_keys, OBSERVATIONS)
        values = entry(data, keys[0]).to(torch.float64)
        dims = (reduce_dim,) if isinstance(reduce_dim, int) else tuple(reduce_dim)
        deviation = values.std(dims, correction=0).clamp_min(eps)
        return cls(values.mean(dims), deviation, keys, standard_normal=True)

    def __repr__(self) -> str:
        return f"ObservationNorm(in_keys={self.in_keys}, standard_normal={self.standard_normal})"
