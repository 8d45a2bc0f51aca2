"""Batches in page-locked memory, from which a GPU copies while the processor goes on."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import is_tensor_collection
from torch import Tensor

__all__ = ["pinned", "require_cuda"]


def require_cuda(wanted: bool) -> bool:
    """`wanted`, if it can be had.

    Raises:
        RuntimeError: it is wanted and there is no CUDA.
    """
    if wanted and not torch.cuda.is_available():
        raise RuntimeError("pin_memory (True) must find a CUDA device; this machine has none: leave it out")
    return bool(wanted)


def pinned(data: Any) -> Any:
    """`data` with all tensors that lie in the processor's memory in page-locked copies; what is no tensor stays."""
    if isinstance(data, Tensor):
        return data.pin_memory() if data.device.type == "cpu" else data
    if is_tensor_collection(data):
        return data.apply(pinned)
    if isinstance(data, dict):
        return {name: pinned(part) for name, part in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*map(pinned, data))
    return type(data)(map(pinned, data)) if isinstance(data, tuple | list) else data
