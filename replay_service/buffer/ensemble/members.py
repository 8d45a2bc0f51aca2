"""Records of several buffers: which buffer, and where in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

__all__ = ["BUFFER_IDS", "INDEX", "MemberIndex", "groups_of", "later_writes", "member_index", "members_index"]

BUFFER_IDS = "buffer_ids"
INDEX = "index"


@dataclass(frozen=True, slots=True)
class MemberIndex:
    """Records of several buffers.

    Attributes:
        buffer_ids: int64 `[n]`, the number of each record's buffer.
        local: int64 `[n]`, its slot there; with lanes coordinates `[n, ndim]`.
        shape: the shape in which the `n` records were named, such as `[buffers, rows]`.
    """

    buffer_ids: Tensor
    local: Tensor
    shape: torch.Size

    def __len__(self) -> int:
        return self.buffer_ids.numel()

    def groups(self) -> list[tuple[int, Tensor]]:
        """Every buffer that is named, and the rows int64 `[k]` that name it, in their order."""
        return groups_of(self.buffer_ids)


def member_index(index: Any, members: int) -> MemberIndex:
    """The records that `index` names among `members` buffers.

    Args:
        index: TensorDict or dict of `buffer_ids`, int64 of any shape, and `index`, of the same shape (with lanes, one dimension more): as
            samples carry it and routed writes return it.
        members: number of buffers.

    Raises:
        TypeError: no such pair, or no integers.
        ValueError: the two differ in shape.
        IndexError: the number of a buffer that is not there.
    """
    if not isinstance(index, TensorDictBase | Mapping) or any(index.get(name) is None for name in (BUFFER_IDS, INDEX)):
        raise TypeError(
            f"index ({type(index).__name__}) must be a TensorDict of {BUFFER_IDS} and {INDEX}, as samples of several buffers carry it"
        )
    ids, local = _integers(index[BUFFER_IDS], BUFFER_IDS), _integers(index[INDEX], INDEX)
    if local.shape[: ids.ndim] != ids.shape:
        raise ValueError(
            f"index.{INDEX} ({list(local.shape)}) must begin with the shape of {BUFFER_IDS}; got {list(ids.shape)}"
        )
    if ids.numel():
        low, high = torch.aminmax(ids)
        if int(low) < 0 or int(high) >= members:
            wrong = int(low) if int(low) < 0 else int(high)
            raise IndexError(f"index.{BUFFER_IDS} ({wrong}) must be in [0, {members}), the number of a buffer")
    return MemberIndex(ids.reshape(-1), local.reshape(ids.numel(), *local.shape[ids.ndim :]), ids.shape)


def members_index(buffer_ids: Tensor, local: Tensor, **more: Tensor) -> TensorDict:
    """The index that names records `local` of the buffers `buffer_ids`, with further entries of the same leading shape."""
    return TensorDict({BUFFER_IDS: buffer_ids, INDEX: local, **more}, batch_size=buffer_ids.shape)


def groups_of(ids: Tensor) -> list[tuple[int, Tensor]]:
    """Every number in `ids` int64 `[n]`, and its positions int64 `[k]` in their order."""
    if not ids.numel():
        return []
    order = torch.argsort(ids, stable=True)
    numbers, counts = torch.unique_consecutive(ids[order], return_counts=True)
    return list(zip(numbers.tolist(), torch.split(order, counts.tolist()), strict=True))


def later_writes(slots: Tensor) -> Tensor:
    """How many entries of `slots` int64 `[n]` behind each one name the same slot: int64 `[n]`."""
    array = slots.numpy()
    order = np.argsort(array, kind="stable")
    ordered = array[order]
    later = np.empty(array.size, np.int64)
    later[order] = np.searchsorted(ordered, ordered, side="right") - 1 - np.arange(array.size)
    return torch.from_numpy(later)


def _integers(given: Any, name: str) -> Tensor:
    values = torch.as_tensor(given, device="cpu").detach().to("cpu")
    if values.numel() and (values.dtype == torch.bool or values.is_floating_point() or values.is_complex()):
        raise TypeError(f"index.{name} must be integers; got {str(values.dtype).removeprefix('torch.')}")
    return values.to(torch.int64)
