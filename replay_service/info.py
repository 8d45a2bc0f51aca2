"""What a sampler says of a batch (`index`, weights, masks), as entries of the batch itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["merge_info"]


def merge_info(data: Any, info: dict[str, Any]) -> None:
    """Puts the entries of `info` that are aligned with the rows of the TensorDict `data` `[n]` into it; coordinates as `[n, ndim]`."""
    rows = data.shape[0]
    for name, value in info.items():
        if isinstance(value, tuple):
            value = torch.stack(value, 1)
        if isinstance(value, Tensor) and value.ndim and value.shape[0] == rows:
            data.set(name, value)
