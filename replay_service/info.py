"""What a sampler says of a batch (`index`, weights, masks), as entries of the batch itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["merge_info", "priorities_of"]


def merge_info(data: Any, info: dict[Any, Any]) -> None:
    """Puts the entries of `info` that are aligned with the rows of the TensorDict `data` `[n]` into it; coordinates as `[n, ndim]`."""
    rows = data.shape[0]
    for name, value in info.items():
        if isinstance(value, tuple):
            value = torch.stack(value, 1)
        if isinstance(value, Tensor) and value.ndim and value.shape[0] == rows:
            data.set(name, value)


def priorities_of(data: Any, priority: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Whose priorities the rows of a sampled batch set: index, priorities `[n, …]` and stamps, if the batch has any.

    Of windows (`anchor_index`) only the anchor gets one, the largest of the rows that are valid and to be learned from: what surrounds
    them says nothing of their own records.
    """
    anchors = data.get("anchor_index", None)
    if anchors is None:
        return data["index"], priority, data.get("index_generation", None)
    window = data.get("sequence_id")
    counted = data.get("learning_mask") & data.get("validity_mask")
    rows = priority.reshape(priority.shape[0], -1).amax(1)
    windows = int(window.max()) + 1 if window.numel() else 0
    # Where no row counts, nothing is known that is above zero.
    largest = rows.new_zeros(windows).scatter_reduce_(0, window[counted], rows[counted], "amax", include_self=False)
    first = data.get("step_in_sequence") == 0
    stamps = data.get("anchor_generation", None)
    return anchors[first], largest[window[first]], None if stamps is None else stamps[first]
