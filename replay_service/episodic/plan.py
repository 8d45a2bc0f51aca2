"""What is to be read of some steps: columns and slots, before a byte is copied. It becomes a `Batch`, or is gathered
straight into memory that somebody else has set aside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from replay_service.episodic.batch import Batch
from replay_service.episodic.columns import StepColumn
from replay_service.episodic.travel import ARRAY, TENSOR, Skeleton, tensor_of
from replay_service.specs import Key
from replay_service.structure import Leaf

__all__ = ["Plan", "Reading"]

Ints = NDArray[np.int64]


class Reading(NamedTuple):
    """Rows `slots` (of any shape) of one column."""

    column: StepColumn
    slots: Ints


class Plan:
    """Entries by name: a `Reading`, a value that is known already, or a dictionary of these."""

    def __init__(self) -> None:
        self.entries: dict[str, Any] = {}

    def build(self) -> Batch:
        """The entries, read."""
        return Batch.wrap(_built(self.entries))

    def leaves(self) -> tuple[Skeleton, list[Leaf]] | None:
        """How the entries are nested, and key, dtype and whole shape of each; None if one is made of objects."""
        leaves: list[Leaf] = []
        skeleton = _leaves(self.entries, (), leaves)
        return None if skeleton is None else (skeleton, leaves)

    def fill(self, outs: Sequence[Tensor]) -> None:
        """Reads the entries into tensors, in the order of `leaves`."""
        readings: list[Any] = []
        _flatten(self.entries, readings)
        for reading, out in zip(readings, outs, strict=True):
            if type(reading) is Reading:
                reading.column.read_into(reading.slots, out)
            else:
                out.copy_(torch.as_tensor(reading, device="cpu"))


def _built(entries: dict[str, Any]) -> dict[str, Any]:
    built = {}
    for name, part in entries.items():
        if type(part) is Reading:
            built[name] = part.column.read(part.slots)
        else:
            built[name] = Batch.wrap(_built(part)) if type(part) is dict else part
    return built


def _flatten(entries: dict[str, Any], found: list[Any]) -> None:
    for part in entries.values():
        if type(part) is dict:
            _flatten(part, found)
        else:
            found.append(part)


def _leaves(entries: dict[str, Any], prefix: Key, leaves: list[Leaf]) -> Skeleton | None:
    parts: list[tuple[str, Any]] = []
    for name, part in entries.items():
        key = (*prefix, name)
        kind: Any = ARRAY
        if type(part) is dict:
            kind = _leaves(part, key, leaves)
        elif type(part) is Reading:
            stored = part.column.tensor
            if stored is None:
                return None
            leaves.append(Leaf(key, stored.dtype, (*part.slots.shape, *part.column.shape)))
            kind = TENSOR if isinstance(part.column.whole, Tensor) else ARRAY
        else:
            tensor = tensor_of(part)
            if tensor is None:
                return None
            leaves.append(Leaf(key, tensor.dtype, tuple(tensor.shape)))
        if kind is None:
            return None
        parts.append((name, kind))
    return tuple(parts)
