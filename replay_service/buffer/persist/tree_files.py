"""Trees in the files of a checkpoint: one JSON file, and the bytes of what is in it in blocks that are linked where they did not change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replay_service.buffer.persist.draft import Draft
from replay_service.buffer.persist.reading import Checkpoint
from replay_service.buffer.persist.trees import Blobs, pack_tree, unpack_tree

__all__ = ["digest_of", "link_or_write", "read_tree", "write_tree"]

PIECE_BYTES = 1 << 20

Bytes = NDArray[np.uint8]


def write_tree(draft: Draft, name: str, tree: Any, allow_pickle: bool = False) -> None:
    """Writes a tree as `name.json` and the blocks `name/…`.

    Raises:
        CheckpointError: something in it can only be pickled, and `allow_pickle` is False.
    """
    blobs = Blobs()
    packed = pack_tree(tree, blobs, allow_pickle)
    pieces = {}
    for number, parts in enumerate(blobs.parts):
        data = parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.uint8), *parts])
        for at in range(0, data.size, PIECE_BYTES):
            pieces[_piece(name, number, at // PIECE_BYTES)] = data[at : at + PIECE_BYTES]
    sizes = [sum(part.size for part in parts) for parts in blobs.parts]
    text = json.dumps({"tree": packed, "blobs": sizes}, separators=(",", ":")).encode()
    pieces[f"{name}.json"] = np.frombuffer(text, np.uint8)
    draft.run([partial(link_or_write, draft, file, [data]) for file, data in pieces.items()])


def read_tree(source: Checkpoint, name: str, allow_pickle: bool = False) -> Any:
    """The tree that `write_tree` wrote; its tensors have memory of their own.

    Raises:
        CheckpointError: a file is missing or damaged, or something in it is pickled, and `allow_pickle` is False.
    """
    document = source.read_json(f"{name}.json")
    blobs = [np.empty(size, np.uint8) for size in document["blobs"]]
    tasks = [
        partial(source.read_into, _piece(name, number, at // PIECE_BYTES), data[at : at + PIECE_BYTES])
        for number, data in enumerate(blobs)
        for at in range(0, data.size, PIECE_BYTES)
    ]
    source.run(tasks)
    return unpack_tree(document["tree"], blobs, allow_pickle)


def link_or_write(draft: Draft, name: str, parts: Sequence[Bytes]) -> None:
    """Writes a file whose content is known by its digest only; links it, if the earlier checkpoint has the same."""
    digest = digest_of(parts)
    earlier = draft.base_record(name)
    if earlier is None or earlier.digest != digest or not draft.link(name):
        draft.write(name, parts, digest)


def digest_of(parts: Sequence[Bytes]) -> str:
    """What no other content has."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)  # type: ignore[arg-type]
    return digest.hexdigest()


def _piece(name: str, blob: int, piece: int) -> str:
    return f"{name}/{blob:03d}.{piece:05d}.bin"
