"""What a sampler says of a batch (`index`, weights, masks), as entries of the batch itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tensordict import TensorDict, is_tensor_collection
from torch import Tensor

from replay_service.arguments import entry_key
from replay_service.specs import Key

__all__ = ["carried_priority", "merge_info", "priorities_of"]


def merge_info(data: Any, info: dict[Any, Any]) -> None:
    """Puts the entries of `info` that are aligned with the rows of the TensorDict `data` `[n]` into it; coordinates as `[n, ndim]`."""
    rows = data.shape[0]
    for name, value in info.items():
        if isinstance(value, tuple):
            value = torch.stack(value, 1)
        if isinstance(value, Tensor) and value.ndim and value.shape[0] == rows:
            data.set(name, value)


def carried_priority(data: Any, priority_key: str | Key) -> Tensor:
    """The priorities that a sampled batch carries as its entry `priority_key`, one or several per row.

    Raises:
        TypeError: `data` is no TensorDict.
        KeyError: it has no such entry, or no `index`.
    """
    if not is_tensor_collection(data):
        raise TypeError(f"data must be a TensorDict, as sample returns it; got {type(data).__name__}")
    priority: Tensor | None = data.get(entry_key("priority_key", priority_key), None)
    if priority is None:
        raise KeyError(f"priority_key ({priority_key}) must be an entry of data; got {list(data.keys())}")
    if data.get("index", None) is None:
        raise KeyError(f"index must be an entry of data, as sample gives it; got {list(data.keys())}")
    return priority


def priorities_of(data: Any, priority: Tensor) -> tuple[Any, Tensor, Tensor | None]:
    """Whose priorities the rows of a sampled batch set: index, priorities `[n, …]` and stamps, if the batch has any.

    Of windows (`anchor_index`) only the anchor gets one, the largest of the rows that are valid and to be learned from: what surrounds
    them says nothing of their own records. Of a batch from several buffers, `index` names them, too.
    """
    if data.get("anchor_index", None) is None:
        return data["index"], priority, data.get("index_generation", None)
    if isinstance(data["index"], Tensor):
        return _of_anchors(data, priority)
    found = [(ids, *_of_anchors(part, values)) for ids, part, values in _by_buffer(data, priority)]
    numbers, anchors, largest, stamps = zip(*found, strict=True)
    ids = torch.cat([number.expand(anchor.shape[0]) for number, anchor in zip(numbers, anchors, strict=True)])
    index = TensorDict({"buffer_ids": ids, "index": torch.cat(anchors)}, batch_size=ids.shape)
    known = [stamp for stamp in stamps if stamp is not None]
    return index, torch.cat(largest), torch.cat(known) if len(known) == len(stamps) else None


def _of_anchors(data: Any, priority: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """The anchors of windows, one each, with their priority and stamp."""
    window = data.get("sequence_id")
    counted = data.get("learning_mask") & data.get("validity_mask")
    rows = priority.reshape(priority.shape[0], -1).amax(1)
    windows = int(window.max()) + 1 if window.numel() else 0
    # Where no row counts, nothing is known that is above zero.
    largest = rows.new_zeros(windows).scatter_reduce_(0, window[counted], rows[counted], "amax", include_self=False)
    first = data.get("step_in_sequence") == 0
    stamps = data.get("anchor_generation", None)
    return data["anchor_index"][first], largest[window[first]], None if stamps is None else stamps[first]


def _by_buffer(data: Any, priority: Tensor) -> Iterator[tuple[Tensor, Any, Tensor]]:
    """The parts of a batch that came from one buffer each: its number `[1]`, the rows, their priorities."""
    ids = data["index"]["buffer_ids"]
    if ids.ndim > 1:
        for part in range(data.shape[0]):
            yield ids[part, :1], data[part], priority[part]
    else:
        _, counts = torch.unique_consecutive(ids, return_counts=True)
        sizes = counts.tolist()
        for number, part, values in zip(
            torch.split(ids, sizes), data.split(sizes), torch.split(priority, sizes), strict=True
        ):
            yield number[:1], part, values
