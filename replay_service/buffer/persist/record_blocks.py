"""Records of any kind in block files: so many in each, packed one after the other, blocks linked where nothing in them changed.

A block file: the length of its header in 8 bytes, little-endian; the header, JSON, padded to a multiple of 64 bytes; what it points to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replay_service.arena import aligned
from replay_service.buffer.persist.draft import Draft
from replay_service.buffer.persist.reading import Checkpoint
from replay_service.buffer.persist.tree_files import link_or_write
from replay_service.buffer.persist.trees import Blobs, pack_tree, unpack_tree
from replay_service.errors import CheckpointError

__all__ = ["read_record_blocks", "write_record_blocks"]

PREFIX_BYTES = 8
BLOCK_BYTES = 1 << 20
MOST_RECORDS = 1 << 12
TRIED_RECORDS = 16

Bytes = NDArray[np.uint8]


def write_record_blocks(
    draft: Draft, name: str, records: Sequence[Any], per_block: int | None, allow_pickle: bool
) -> dict[str, int]:
    """Writes records as `name.00000.bin` and so on.

    Args:
        draft: the checkpoint.
        name: how the files begin.
        records: the records; nobody changes them meanwhile.
        per_block: how many records a block of the earlier checkpoint has; None for none.
        allow_pickle: as `pack_tree`.

    Returns:
        what `read_record_blocks` needs to know.
    """
    size = per_block or _records_per_block(records, allow_pickle)

    def save(block: int) -> None:
        part = list(records[block * size : (block + 1) * size])
        link_or_write(draft, _file(name, block), _packed(part, f"record {block * size}+", allow_pickle))

    draft.run(partial(save, block) for block in range(-(-len(records) // size)))
    return {"count": len(records), "per_block": size}


def read_record_blocks(
    source: Checkpoint, name: str, described: dict[str, Any], allow_pickle: bool, check: Callable[[Any], None]
) -> list[Any]:
    """The records; `check` raises for those that do not fit.

    Raises:
        CheckpointError: a file is missing or damaged, or holds pickled objects, and `allow_pickle` is False.
    """
    count, size = int(described["count"]), int(described["per_block"])
    blocks: list[list[Any]] = [[] for _ in range(-(-count // size))]

    def load(block: int) -> None:
        file = _file(name, block)
        blocks[block] = _unpacked(source.read(file), allow_pickle)
        if len(blocks[block]) != min(size, count - block * size):
            raise CheckpointError(f"file ({source.folder / file}) must hold {size} records; got {len(blocks[block])}")
        for record in blocks[block]:
            check(record)

    source.run(partial(load, block) for block in range(len(blocks)))
    return [record for block in blocks for record in block]


def _records_per_block(records: Sequence[Any], allow_pickle: bool) -> int:
    """A power of two, for blocks of about `BLOCK_BYTES`."""
    step = max(1, len(records) // TRIED_RECORDS)
    tried = list(records[::step])[:TRIED_RECORDS]
    if not tried:
        return MOST_RECORDS
    mean = sum(part.size for part in _packed(tried, "record", allow_pickle)) / len(tried)
    wanted = min(MOST_RECORDS, max(1, int(BLOCK_BYTES / max(1.0, mean))))
    return 1 << (wanted.bit_length() - 1)


def _packed(records: list[Any], name: str, allow_pickle: bool) -> list[Bytes]:
    blobs = Blobs(together=True)
    header = json.dumps(pack_tree(records, blobs, allow_pickle), separators=(",", ":")).encode()
    start = np.zeros(aligned(PREFIX_BYTES + len(header)), np.uint8)
    start[:PREFIX_BYTES] = np.frombuffer(len(header).to_bytes(PREFIX_BYTES, "little"), np.uint8)
    start[PREFIX_BYTES : PREFIX_BYTES + len(header)] = np.frombuffer(header, np.uint8)
    return [start, *blobs.parts[0]]


def _unpacked(data: Bytes, allow_pickle: bool) -> list[Any]:
    length = int.from_bytes(data[:PREFIX_BYTES].tobytes(), "little")
    try:
        header = json.loads(data[PREFIX_BYTES : PREFIX_BYTES + length].tobytes())
    except ValueError as error:
        raise CheckpointError(f"block of records must begin with JSON; {error}") from None
    records = unpack_tree(header, [data[aligned(PREFIX_BYTES + length) :]], allow_pickle)
    if not isinstance(records, list):
        raise CheckpointError(f"block of records must hold a list; got {type(records).__name__}")
    return records


def _file(name: str, block: int) -> str:
    return f"{name}.{block:05d}.bin"
