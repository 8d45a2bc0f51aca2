"""Entries as numbers of another kind."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from replay_service.buffer.tensordict_buffer import SERVICE_KEYS
from replay_service.transforms.entrywise import Entrywise
from replay_service.transforms.transform import Keys, copied

__all__ = ["DtypeCast"]


class DtypeCast(Entrywise):
    """Casts entries from `dtype_in`, as stored, to `dtype_out`, as sampled; on the way in, `in_keys_inv` back to `dtype_in`.

    `DtypeCast(torch.float16, torch.float32, in_keys=["observation"], in_keys_inv=["observation"])` halves what is kept and sent.

    Args:
        dtype_in, dtype_out: the dtypes.
        in_keys: entries to cast, which must be of `dtype_in`; None: all that are, but for `index` and the like.
        out_keys: where the results go; None: in place.
        in_keys_inv: entries to cast on the way in; None: none.
        out_keys_inv: the entries that those are made of; None: `in_keys_inv`.

    Raises:
        TypeError: a dtype is none.
        ValueError: `out_keys` without `in_keys`.
    """

    def __init__(
        self,
        dtype_in: torch.dtype,
        dtype_out: torch.dtype,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
    ) -> None:
        for name, dtype in (("dtype_in", dtype_in), ("dtype_out", dtype_out)):
            if not isinstance(dtype, torch.dtype):
                raise TypeError(f"{name} ({dtype!r}) must be a torch.dtype")
        super().__init__(in_keys, out_keys, in_keys_inv, out_keys_inv)
        self.dtype_in, self.dtype_out = dtype_in, dtype_out
        self._casts_all = in_keys is None

    def forward(self, data: Any) -> Any:
        """The batch with entries as `dtype_out`."""
        if not self._casts_all:
            return super().forward(data)
        made = copied(self, data)
        for key in list(data.keys(include_nested=True, leaves_only=True)):
            value = data.get(key)
            if key not in SERVICE_KEYS and isinstance(value, Tensor) and value.dtype == self.dtype_in:
                made.set(key, value.to(self.dtype_out))
        return made

    def apply(self, value: Tensor) -> Tensor:
        """As `dtype_out`."""
        if value.dtype != self.dtype_in:
            raise TypeError(f"in_keys must name entries of {self.dtype_in}; got one of {value.dtype}")
        return value.to(self.dtype_out)

    def undo(self, value: Tensor) -> Tensor:
        """As `dtype_in`."""
        return value.to(self.dtype_in)

    def __repr__(self) -> str:
        return f"DtypeCast({self.dtype_in}, {self.dtype_out})"
