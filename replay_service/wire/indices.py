"""Indices on the wire: integers in the header where they suffice, leaves where not.

`arguments[0]` says the kind, and what follows is

    INTEGER   the integer
    SLICE     start, stop, step, and which of them are missing (one bit each)
    SLOTS     nothing; the leaf `index` is an int64 or bool array of any shape
    PARTS     how many parts, and two bits for each: 0 integer, 1 slice, 2 array. Part `i` is the leaf `(index, i)`; a slice is its
              start, stop, step and missing bits. What storages with lanes are indexed with.
    KEY       nothing; the leaf `key` is the name of an entry as JSON
    MEMBERS   nothing; the leaves `(index, buffer_ids)` and `(index, index)` name records of several buffers

Calls that always name records by numbers carry only the leaves: `index`, or those two and what else belongs to them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from replay_service.arguments import index_array
from replay_service.specs import Key
from replay_service.wire.message import Message
from replay_service.wire.packing import ProtocolError

__all__ = ["decode_index", "encode_index", "names_one", "record_entries", "records_named"]

Entries = list[tuple[Key, Tensor]]

SMALLEST, LARGEST = -(1 << 63), (1 << 63) - 1
MOST_PARTS = 16
MEMBER_LEAVES = ("buffer_ids", "index")


class Kind(IntEnum):
    """What an index is."""

    INTEGER = 1
    SLICE = 2
    SLOTS = 3
    PARTS = 4
    KEY = 5
    MEMBERS = 6


def encode_index(index: Any) -> tuple[tuple[int, ...], Entries]:
    """Arguments and leaves that stand for `index`.

    Raises:
        TypeError: something that is no index.
        IndexError: an integer that does not fit 64 bits.
    """
    if _is_key(index):
        name = json.dumps([index] if isinstance(index, str) else list(index)).encode()
        return (Kind.KEY,), [(("key",), torch.frombuffer(bytearray(name), dtype=torch.uint8))]
    if isinstance(index, TensorDictBase | Mapping):
        return (Kind.MEMBERS,), record_entries(index)
    if isinstance(index, tuple):
        return _encode_parts(index)
    if isinstance(index, slice) or index is Ellipsis:
        return (Kind.SLICE, *_slice_numbers(slice(None) if index is Ellipsis else index)), []
    if isinstance(index, bool):
        raise TypeError(
            f"index ({index}) must be an integer, a slice, or an array of integers or of flags; got one bool"
        )
    if isinstance(index, int | np.integer):
        return (Kind.INTEGER, _integer(index)), []
    slots = index_array(index)
    return ((Kind.INTEGER, int(slots)), []) if slots.ndim == 0 else ((Kind.SLOTS,), [(("index",), slots)])


def record_entries(index: Any) -> Entries:
    """The leaves that name records: by slots `[B]`, by coordinates `[B, ndim]`, or in several buffers by `buffer_ids` and `index`.

    Raises:
        TypeError: something that names no records.
        IndexError: coordinates that differ in their number.
    """
    if isinstance(index, TensorDictBase | Mapping):
        if any(index.get(name) is None for name in MEMBER_LEAVES):
            raise TypeError(f"index ({sorted(map(str, index.keys()))}) must hold {list(MEMBER_LEAVES)}")
        return [(("index", str(name)), index_array(value)) for name, value in index.items()]
    if isinstance(index, tuple):
        parts = [index_array(part).reshape(-1) for part in index]
        if len({part.shape for part in parts}) > 1:
            raise IndexError(f"index (coordinates of {[part.numel() for part in parts]} records) must be equally long")
        return [(("index",), torch.stack(parts, 1))]
    tensor = index_array(index)
    return [(("index",), tensor.reshape(1) if tensor.ndim == 0 else tensor)]


def records_named(message: Message) -> Any:
    """The records that the leaves of a message name: slots, a tuple of coordinates, or a TensorDict of `buffer_ids`, `index`….

    Raises:
        KeyError: it names none.
    """
    whole = message.optional("index")
    if whole is not None:
        return tuple(whole.unbind(1)) if whole.ndim == 2 else whole
    ids, _ = (message.tensor("index", name) for name in MEMBER_LEAVES)
    named = {leaf.key[1]: message.tensor(*leaf.key) for leaf in message.layout.leaves if leaf.key[0] == "index"}
    return TensorDict(named, batch_size=ids.shape)


def names_one(arguments: tuple[int, ...]) -> bool:
    """Whether records travel without a leading dimension: under one integer, and under parts, which may leave any number of them."""
    return arguments[0] in (Kind.INTEGER, Kind.PARTS)


def decode_index(message: Message) -> tuple[Any, bool]:
    """The index that `message` carries, and `names_one` of it.

    Raises:
        ProtocolError: it carries none.
    """
    kind, single = message.argument(0), names_one((message.argument(0),))
    if kind == Kind.INTEGER:
        return message.argument(1), single
    if kind == Kind.SLICE:
        return _slice(message.arguments[1:5]), single
    if kind == Kind.MEMBERS:
        return records_named(message), single
    if kind == Kind.SLOTS:
        return message.tensor("index"), single
    if kind == Kind.PARTS and 0 <= message.argument(1) <= MOST_PARTS:
        return tuple(_decode_part(message, place) for place in range(message.argument(1))), single
    if kind == Kind.KEY:
        name = json.loads(message.tensor("key").numpy().tobytes())
        if isinstance(name, list) and name and all(isinstance(part, str) for part in name):
            return tuple(name), single
    raise ProtocolError(f"index (kind {kind}) must be one of {[int(known) for known in Kind]}, in its own form")


def _encode_parts(index: tuple[Any, ...]) -> tuple[tuple[int, ...], Entries]:
    if len(index) > MOST_PARTS:
        raise IndexError(f"index ({len(index)} parts) must have one part per dimension that names records")
    kinds = 0
    entries: Entries = []
    for place, part in enumerate(index):
        if isinstance(part, slice):
            kind, leaf = 1, torch.tensor(_slice_numbers(part), device="cpu")
        elif isinstance(part, int | np.integer) and not isinstance(part, bool):
            kind, leaf = 0, torch.tensor(_integer(part), device="cpu")
        else:
            kind, leaf = 2, index_array(part)
        kinds |= kind << 2 * place
        entries.append((("index", str(place)), leaf))
    return (Kind.PARTS, len(index), kinds), entries


def _decode_part(message: Message, place: int) -> Any:
    leaf, kind = message.tensor("index", str(place)), message.argument(2) >> 2 * place & 3
    if kind == 2:
        return leaf
    if kind == 0 and leaf.numel() == 1:
        return int(leaf)
    if kind == 1 and leaf.numel() == 4:
        return _slice(tuple(leaf.tolist()))
    raise ProtocolError(f"index part {place} must be an integer, a slice or an array")


def _slice_numbers(index: slice) -> tuple[int, int, int, int]:
    parts = (index.start, index.stop, index.step)
    missing = sum(1 << place for place, part in enumerate(parts) if part is None)
    # Beyond what is filled all numbers mean the same, so that those that do not fit can be brought near.
    start, stop, step = (0 if part is None else min(max(_index(part), SMALLEST), LARGEST) for part in parts)
    return start, stop, step, missing


def _slice(numbers: tuple[int, ...]) -> slice:
    missing = numbers[3]
    return slice(*(None if missing >> place & 1 else int(part) for place, part in enumerate(numbers[:3])))


def _integer(index: Any) -> int:
    number = int(index)
    if not SMALLEST <= number <= LARGEST:
        raise IndexError(f"index ({number}) must fit 64 bits")
    return number


def _index(part: Any) -> int:
    if isinstance(part, bool) or not hasattr(part, "__index__"):
        raise TypeError(f"index (a slice with {part!r}) must be made of integers")
    return int(part.__index__())


def _is_key(index: Any) -> bool:
    return isinstance(index, str) or (
        isinstance(index, tuple) and bool(index) and all(isinstance(part, str) for part in index)
    )
