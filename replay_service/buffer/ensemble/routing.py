"""Which buffer of an ensemble a record goes to."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, is_tensor_collection
from torch import Tensor

from replay_service.buffer.trajectory import as_key
from replay_service.errors import LayoutError, key_name
from replay_service.specs import Key

__all__ = ["Routing"]


class Routing:
    """Tells the buffer of every record of a batch.

    Args:
        key: the entry that holds the number of the buffer, one per record.
        dim: the dimension of the batch whose places are the buffers. One of the two at most.

    Raises:
        ValueError: both are given.
        TypeError: no key, or no integer.
    """

    def __init__(self, key: str | Key | None = None, dim: int | None = None) -> None:
        if key is not None and dim is not None:
            raise ValueError(f"routing_key ({key!r}) must come without routing_dim; got {dim}")
        if dim is not None and (isinstance(dim, bool) or not isinstance(dim, int)):
            raise TypeError(f"routing_dim ({dim!r}) must be an integer; got {type(dim).__name__}")
        self.key: Key | None = None if key is None else as_key("routing_key", key)
        self.dim = dim

    @property
    def is_set(self) -> bool:
        """Whether there is a route at all."""
        return self.key is not None or self.dim is not None

    def route(self, data: Any, members: int) -> tuple[TensorDictBase, Tensor]:
        """The records in one dimension `[n]`, and the numbers of their buffers, int64 `[n]`.

        Raises:
            RuntimeError: there is no route.
            TypeError: the records have no named entries, or the numbers are none.
            LayoutError: no batch dimension, no such entry, or not one number per record, or another number of places than buffers.
            ValueError: the number of a buffer that is not there.
        """
        if not self.is_set:
            raise RuntimeError(
                "records must be given a buffer: build the ensemble with routing_key or routing_dim, or write to one buffer, rb[i].extend"
            )
        batch = _as_batch(data)
        flat: TensorDictBase = batch.reshape(-1)
        return flat, self._by_key(flat, members) if self.key is not None else self._by_place(batch, members)

    def _by_key(self, flat: TensorDictBase, members: int) -> Tensor:
        name = key_name(self.key or ())
        ids = flat.get(self.key, None)
        if not isinstance(ids, Tensor):
            raise LayoutError(f"routing_key ({name}) must be an entry of data; got {sorted(map(str, flat.keys()))}")
        if ids.numel() != flat.shape[0]:
            raise LayoutError(
                f"{name} ({list(ids.shape)}) must hold one number per record; got {flat.shape[0]} records"
            )
        ids = ids.detach().to("cpu").reshape(-1)
        if ids.numel() and (ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex()):
            raise TypeError(f"{name} must be integers; got {str(ids.dtype).removeprefix('torch.')}")
        ids = ids.to(torch.int64)
        wrong = ids[(ids < 0) | (ids >= members)]
        if wrong.numel():
            raise ValueError(f"{name} ({int(wrong[0])}) must be in [0, {members}), the number of a buffer")
        return ids

    def _by_place(self, batch: TensorDictBase, members: int) -> Tensor:
        dim = self.dim or 0
        if not -batch.ndim <= dim < batch.ndim:
            raise LayoutError(f"routing_dim ({dim}) must be a dimension of the batch; got {list(batch.shape)}")
        dim %= batch.ndim
        if batch.shape[dim] != members:
            raise LayoutError(f"routing_dim ({dim}) must have one place per buffer, {members}; got {list(batch.shape)}")
        view = [1] * batch.ndim
        view[dim] = members
        return torch.arange(members, device="cpu").view(view).expand(batch.shape).reshape(-1)


def _as_batch(data: Any) -> TensorDictBase:
    if isinstance(data, dict):
        made: Any = TensorDict(data)
        data = made.auto_batch_size_(1)
    if not is_tensor_collection(data):
        raise TypeError(f"data ({type(data).__name__}) must be a TensorDict to be routed among buffers")
    if not data.ndim:
        raise LayoutError("data must have a leading dimension of rows; got none: use add for one record")
    batch: TensorDictBase = data
    return batch
