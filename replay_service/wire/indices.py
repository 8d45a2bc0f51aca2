"""Indices on the wire: integers in the header where they suffice, an int64 or bool leaf where not.

`arguments[0]` says the kind; `arguments[1:4]` are the integer, or start, stop and step of a slice, of which those missing are marked in
`arguments[4]`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from replay_service.specs import Key
from replay_service.wire.message import Message

__all__ = ["decode_index", "encode_index"]


class Kind(IntEnum):
    """What an index is."""

    INTEGER = 1
    SLICE = 2
    SLOTS = 3
    COORDINATES = 4


def encode_index(index: Any) -> tuple[tuple[int, ...], list[tuple[Key, Tensor]]]:
    """Arguments and leaves that stand for `index`.

    Raises:
        TypeError: something that is no index.
    """
    if isinstance(index, bool):
        raise TypeError(
            f"index ({index}) must be an integer, a slice, or an array of integers or of flags; got one bool"
        )
    if isinstance(index, int | np.integer):
        return (Kind.INTEGER, int(index)), []
    if index is Ellipsis:
        index = slice(None)
    if isinstance(index, slice):
        parts = (index.start, index.stop, index.step)
        missing = sum(1 << place for place, part in enumerate(parts) if part is None)
        return (Kind.SLICE, *(0 if part is None else int(part) for part in parts), missing), []
    if isinstance(index, tuple):
        stacked = torch.stack([torch.as_tensor(part, dtype=torch.int64).reshape(-1) for part in index], 1)
        return (Kind.COORDINATES,), [(("index",), stacked)]
    if isinstance(index, range):
        index = list(index)
    if not isinstance(index, Tensor | np.ndarray | list):
        raise TypeError(
            f"index must be an integer, a slice, or an array of integers or of flags; got {type(index).__name__}"
        )
    slots = torch.as_tensor(np.asarray(index) if isinstance(index, list) else index)
    if slots.numel() == 0 and slots.dtype != torch.bool:
        slots = slots.to(torch.int64)
    if slots.is_floating_point() or slots.is_complex():
        raise TypeError(f"index must be integers or flags; got {str(slots.dtype).removeprefix('torch.')}")
    if slots.ndim == 0:
        return (Kind.INTEGER, int(slots)), []
    return (Kind.SLOTS,), [(("index",), slots if slots.dtype == torch.bool else slots.to(torch.int64))]


def decode_index(message: Message) -> tuple[Any, bool]:
    """The index that `message` carries, and whether it names a single record."""
    kind = Kind(message.argument(0))
    if kind is Kind.INTEGER:
        return message.argument(1), True
    if kind is Kind.SLICE:
        missing = message.argument(4)
        parts = [None if missing >> place & 1 else message.argument(place + 1) for place in range(3)]
        return slice(*parts), False
    index = message.tensor("index")
    return (tuple(index.unbind(1)) if kind is Kind.COORDINATES else index), False
