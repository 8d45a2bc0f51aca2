"""Batches taken apart into named tensors, for the wire, and put together again.

A skeleton says how the leaves are nested and what they were: `((name, kind), …)`, where `kind` is `ARRAY`, `TENSOR` or
the skeleton of a nested batch. It is made of strings and tuples, so that it can be written as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from replay_service.episodic.batch import Batch
from replay_service.errors import LayoutError, key_name
from replay_service.specs import Key

__all__ = ["ARRAY", "TENSOR", "Apart", "Skeleton", "apart", "tensor_of", "together"]

Skeleton: TypeAlias = "tuple[tuple[str, Any], ...]"

ARRAY = "n"
TENSOR = "t"


class Apart(NamedTuple):
    """A batch as named tensors, in order."""

    skeleton: Skeleton
    entries: list[tuple[Key, Tensor]]


def apart(batch: Mapping[str, Any] | Batch) -> Apart:
    """The leaves of `batch` as tensors on the same memory, where they can be.

    Raises:
        LayoutError: a leaf is no array or tensor of numbers.
    """
    entries: list[tuple[Key, Tensor]] = []
    return Apart(_apart(batch, (), entries), entries)


def together(skeleton: Iterable[Any], tensors: Iterable[Tensor]) -> Batch:
    """The batch that was taken apart, on the memory of `tensors`; arrays without a dimension become numbers."""
    return _together(skeleton, iter(tensors))


def tensor_of(leaf: Any) -> Tensor | None:
    """A leaf as a tensor; None for what is none."""
    if isinstance(leaf, Tensor):
        return leaf.detach()
    array = np.asarray(leaf)
    if array.dtype.kind not in "biufc":
        return None
    try:
        return torch.from_numpy(array if array.flags.writeable and _runs_forward(array) else array.copy())
    except (TypeError, ValueError):  # a number that torch does not know
        return None


def _runs_forward(array: np.ndarray) -> bool:
    return all(stride >= 0 for stride in array.strides)


def _apart(batch: Mapping[str, Any] | Batch, prefix: Key, entries: list[tuple[Key, Tensor]]) -> Skeleton:
    parts: list[tuple[str, Any]] = []
    for name, leaf in batch.items():
        key = (*prefix, name)
        if isinstance(leaf, Batch | dict):
            parts.append((name, _apart(leaf, key, entries)))
            continue
        tensor = tensor_of(leaf)
        if tensor is None:
            raise LayoutError(f"{key_name(key)} must be numbers to travel as a tensor; got {type(leaf).__name__}")
        entries.append((key, tensor))
        parts.append((name, TENSOR if isinstance(leaf, Tensor) else ARRAY))
    return tuple(parts)


def _together(skeleton: Iterable[Any], tensors: Iterator[Tensor]) -> Batch:
    content: dict[str, Any] = {}
    for name, kind in skeleton:
        if kind == TENSOR:
            content[name] = next(tensors)
        elif kind == ARRAY:
            array = next(tensors).numpy(force=True)  # also from a device, where it came by NCCL
            content[name] = array if array.ndim else array[()]
        else:
            content[name] = _together(kind, tensors)
    return Batch.wrap(content)
