"""A columnar storage around tensors that exist already."""

from __future__ import annotations

import math
from typing import Any

import torch

from replay_service.buffer.columns import Column
from replay_service.buffer.storages.lazy_tensor import LazyTensorStorage
from replay_service.buffer.table import Table
from replay_service.errors import LayoutError
from replay_service.structure import flatten_rows

__all__ = ["TensorStorage"]


class TensorStorage(LazyTensorStorage):
    """A storage around existing tensors: they are the columns, and count as filled.

    Args:
        storage: tensor, TensorDict, tensorclass or pytree `[max_size, …]`; its memory is used, not copied (if it lies in one piece and on
            `device`).
        max_size: capacity in records; the leading size of `storage` if None.
        device: where the columns live; `"auto"` takes that of `storage`.
        ndim: leading dimensions that name a record.
        compilable: accepted for drop-in use.

    Raises:
        LayoutError: `storage` is not made of dense tensors of one leading size, or not as long as `max_size`.
    """

    watches_writes = False  # the memory is the user's, too

    def __init__(
        self,
        storage: Any,
        max_size: int | None = None,
        *,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        compilable: bool = False,
    ) -> None:
        rows = flatten_rows(storage, leading=ndim)
        lane_shape = tuple(rows.tensors[0].shape[1:ndim])
        records = rows.count * math.prod(lane_shape)
        if device == "auto":
            device = rows.tensors[0].device
        super().__init__(records if max_size is None else max_size, device=device, ndim=ndim, compilable=compilable)
        if self.max_size != records:
            raise LayoutError(f"max_size ({max_size}) must be the number of records in storage; got {records}")
        flat = self._without_lanes(rows)
        columns = [
            Column(leaf, tensor.detach().to(self.device).contiguous())
            for leaf, tensor in zip(flat.leaves(), flat.tensors, strict=True)
        ]
        self._table = Table(columns, flat.spec)
        self._filled = self.slots
