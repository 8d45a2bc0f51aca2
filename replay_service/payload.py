"""The byte layout of rows in one flat buffer: per leaf a contiguous block `[rows, *shape]` at an aligned offset.

Used for batches in memory and for messages on the wire alike, so that rows can be gathered straight into what is sent, and what is
received already is the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from replay_service.arena import aligned
from replay_service.structure import Leaf

__all__ = ["payload_bytes", "view_leaf", "views", "write_leaf"]

NUMPY_DTYPES: dict[torch.dtype, np.dtype[Any]] = {
    torch.bool: np.dtype(np.bool_),
    torch.uint8: np.dtype(np.uint8),
    torch.uint16: np.dtype(np.uint16),
    torch.uint32: np.dtype(np.uint32),
    torch.uint64: np.dtype(np.uint64),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.float16: np.dtype(np.float16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
}
CARRIERS: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.int16),
    4: np.dtype(np.int32),
    8: np.dtype(np.int64),
}


def payload_bytes(leaves: Sequence[Leaf], rows: int) -> int:
    """Bytes of a flat buffer that holds `rows` rows of `leaves`."""
    return sum(aligned(leaf.row_bytes * rows) for leaf in leaves)


def view_leaf(flat: NDArray[np.uint8], dtype: torch.dtype, size: tuple[int, ...], offset: int) -> Tensor:
    """A tensor of that dtype and size over the bytes of `flat` from `offset` on; it keeps the buffer alive."""
    known: np.dtype[Any] | None = NUMPY_DTYPES.get(dtype)
    if known is not None:
        return torch.from_numpy(np.ndarray(size, known, flat, offset))
    # bfloat16, float8: NumPy carries their bits as integers
    return torch.from_numpy(np.ndarray(size, CARRIERS[dtype.itemsize], flat, offset)).view(dtype)


def write_leaf(flat: NDArray[np.uint8], dtype: torch.dtype, size: tuple[int, ...], offset: int, tensor: Tensor) -> None:
    """Copies `tensor`, of that dtype and size, into the bytes of `flat` from `offset` on; on this thread alone.

    torch would share the copy among OpenMP threads, which go on spinning for the processor that the network's threads need next.
    """
    known: np.dtype[Any] | None = NUMPY_DTYPES.get(dtype)
    if known is not None and tensor.is_cpu:
        np.ndarray(size, known, flat, offset)[...] = tensor.numpy(force=True)
    else:
        view_leaf(flat, dtype, size, offset).copy_(tensor)


def views(flat: NDArray[np.uint8], leaves: Sequence[Leaf], rows: int, offset: int = 0) -> list[Tensor]:
    """One tensor `[rows, *shape]` per leaf over the buffer `flat`, from `offset` (aligned) on; they keep the buffer alive."""
    tensors = []
    for leaf in leaves:
        tensors.append(view_leaf(flat, leaf.dtype, (rows, *leaf.shape), offset))
        offset += aligned(leaf.row_bytes * rows)
    return tensors
