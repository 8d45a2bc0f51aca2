"""One record as bytes, and back.

Records of dense tensors (a tensor, TensorDict, tensorclass, or dicts, tuples and lists of these) become a JSON header, which says how
the leaves are put together, followed by their raw bytes; making them again runs nothing. Any other object is pickled, so unpack only
what a program of one's own has packed.

    byte 0             1: dense tensors, 2: pickled
    bytes 1 to 4       length of the header, little-endian (dense tensors only)
    header, leaves     each leaf at the next multiple of 64 bytes
"""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import torch

from replay_service.arena import aligned
from replay_service.buffer.columns import numpy_view
from replay_service.errors import LayoutError
from replay_service.payload import payload_bytes, views
from replay_service.sources import SOURCES, words_of_rows
from replay_service.specs import narrowed, spec_from_json
from replay_service.structure import Leaf, build, row_of

__all__ = ["is_pickled", "pack_record", "unpack_record"]

DENSE, PICKLED = 1, 2
PREFIX_BYTES = 5


def pack_record(record: Any) -> bytes:
    """The bytes of one record.

    Raises:
        LayoutError: an object that is not made of dense tensors and cannot be pickled.
    """
    try:
        rows = row_of(record)
    except LayoutError:
        return _pickled(record)
    leaves = rows.leaves()
    described = [[list(leaf.key), str(leaf.dtype).removeprefix("torch."), list(leaf.shape)] for leaf in leaves]
    sources = words_of_rows(rows.spec, rows.keys, rows.tensors)
    about = {"spec": rows.spec, "leaves": described, **({"sources": sources} if sources else {})}
    header = json.dumps(about, separators=(",", ":")).encode()
    start = aligned(PREFIX_BYTES + len(header))
    packed = np.zeros(start + payload_bytes(leaves, 1), np.uint8)
    packed[:PREFIX_BYTES] = np.frombuffer(bytes([DENSE]) + len(header).to_bytes(4, "little"), np.uint8)
    packed[PREFIX_BYTES : PREFIX_BYTES + len(header)] = np.frombuffer(header, np.uint8)
    for tensor, place in zip(rows.tensors, views(packed, leaves, 1, start), strict=True):
        numpy_view(place)[...] = numpy_view(tensor.detach().cpu())
    return packed.tobytes()


def unpack_record(packed: bytes, device: torch.device | None = None) -> Any:
    """The record that `pack_record` packed, in memory of its own; dense tensors on `device` (the CPU for None)."""
    if packed[0] == PICKLED:
        return pickle.loads(packed[1:])
    length = int.from_bytes(packed[1:PREFIX_BYTES], "little")
    header = json.loads(packed[PREFIX_BYTES : PREFIX_BYTES + length])
    SOURCES.add(header.get("sources", ()))
    leaves = [Leaf(tuple(key), getattr(torch, dtype), tuple(shape)) for key, dtype, shape in header["leaves"]]
    flat = np.frombuffer(bytearray(packed), np.uint8)
    tensors = [tensor[0] for tensor in views(flat, leaves, 1, aligned(PREFIX_BYTES + length))]
    if device is not None and device.type != "cpu":
        tensors = [tensor.to(device) for tensor in tensors]
    return build(narrowed(spec_from_json(header["spec"]), 1), tensors, ())


def is_pickled(packed: bytes) -> bool:
    """Whether making the record again would run what is in it."""
    return packed[:1] != bytes([DENSE])


def _pickled(record: Any) -> bytes:
    try:
        return bytes([PICKLED]) + pickle.dumps(record, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise LayoutError(
            f"data ({type(record).__name__}) must be made of dense tensors, or of objects that can be pickled; {error}"
        ) from error
