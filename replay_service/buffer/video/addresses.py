"""Frame numbers and files as users give them, as the integers that a reference holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from replay_service.buffer.video.source import Source, path_of, source_word
from replay_service.sources import SOURCES

__all__ = ["Device", "compact", "flat_array", "integers", "numbers_of"]

Device = torch.device | str | None


def numbers_of(
    paths: Sequence[Any], stream: int | None, auto_decode: bool, device: Device, dtype: torch.dtype | None
) -> Tensor:
    """The numbers of files that are read in one way, int64 `[n]`.

    Raises:
        TypeError, ValueError: a path, stream or dtype that is none.
    """
    if stream is not None and (isinstance(stream, bool) or not isinstance(stream, int) or stream < 0):
        raise ValueError(f"stream ({stream!r}) must be the number of a stream, or None")
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype ({dtype!r}) must be a torch.dtype")
    where = None if device is None else str(torch.device(device))
    kind = None if dtype is None else str(dtype).removeprefix("torch.")
    sources = [Source(path_of(path), stream, bool(auto_decode), where, kind) for path in paths]
    return torch.tensor(SOURCES.add(map(source_word, sources)), device="cpu")


def integers(name: str, value: Any) -> Tensor:
    """`value` as int64 of any shape.

    Raises:
        TypeError: it is not made of integers.
        ValueError: one is negative.
    """
    index = value if isinstance(value, Tensor) else torch.as_tensor(value, device="cpu")
    if index.dtype == torch.bool or index.is_floating_point() or index.is_complex():
        if index.numel():
            raise TypeError(f"{name} must be integers; got {str(index.dtype).removeprefix('torch.')}")
        return index.to(torch.int64)
    if index.numel() and int(index.min()) < 0:
        raise ValueError(f"{name} ({int(index.min())}) must not be negative")
    return index.to(torch.int64)


def flat_array(tensor: Tensor) -> NDArray[np.int64]:
    """The values of a tensor of any shape and device, int64 `[n]`."""
    values: NDArray[np.int64] = tensor.detach().reshape(-1).cpu().numpy()
    return values


def compact(tensor: Tensor) -> Tensor:
    """The tensor, or a copy if it is a small part of what it is a view of: pickled, that would come along."""
    return tensor.clone() if tensor.nbytes < tensor.untyped_storage().nbytes() else tensor
