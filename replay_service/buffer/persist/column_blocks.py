"""Columns as block files: each column a folder of files with as many rows each, in storage order.

A block is written straight from the column while other calls go on, without the lock and without a copy. A writer that comes to a page
which is still to be written copies it aside first (`Watch`); then the file is written once more, from the copy. So the files hold one
moment, that of `freeze`, and nobody waits longer than it takes to copy what he writes over.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from replay_service.buffer.changes import Watch
from replay_service.buffer.columns import Column, numpy_view
from replay_service.buffer.persist.draft import Draft
from replay_service.buffer.persist.lock_meter import LockMeter
from replay_service.buffer.persist.reading import Checkpoint
from replay_service.errors import key_name
from replay_service.structure import Leaf

__all__ = ["FrozenColumn", "block_name", "check_blocks", "fill_blocks", "folder_of"]

LONGEST_NAME = 100
TRIES = 2

Result = TypeVar("Result")
Bytes = NDArray[np.uint8]


class FrozenColumn:
    """The first rows of one column at one moment; made, and told of the end, under the lock.

    Args:
        column: the column.
        rows: how many rows.
        place: of the column among the others, which names its folder.
        base_id: the checkpoint that files can be linked from, if the column was in it.
        is_certain: whether nobody writes to the column but through it. If not, blocks that did not change by that are compared.
    """

    def __init__(self, column: Column, rows: int, place: int, base_id: str | None, is_certain: bool) -> None:
        if column.watch is None:
            column.watch = Watch(column.tensor, column.leaf.row_bytes)
        self._watch: Watch = column.watch
        self._leaf = column.leaf
        self._rows = rows
        self._is_certain = is_certain
        self._folder = folder_of(place, column.leaf)
        since = self._watch.moment_of(base_id)
        self._moment, self._changed = self._watch.freeze(rows, since)

    @property
    def description(self) -> dict[str, Any]:
        """What the manifest says of the column."""
        leaf = self._leaf
        return {
            "key": list(leaf.key),
            "dtype": str(leaf.dtype).removeprefix("torch."),
            "shape": list(leaf.shape),
            "rows_per_block": self._watch.rows,
            "folder": self._folder,
        }

    def tasks(self, draft: Draft, prefix: str, meter: LockMeter) -> Iterator[Callable[[], None]]:
        """One task per block, which may run side by side."""
        for block in range(self._changed.size):
            yield partial(self._save, block, f"{prefix}{block_name(self._folder, block)}", draft, meter)

    def saved(self, checkpoint_id: str) -> None:
        """Remembers that this moment is in a checkpoint."""
        self._watch.remember(checkpoint_id, self._moment)

    def close(self) -> None:
        """Ends the save."""
        self._watch.thaw()

    def _save(self, block: int, name: str, draft: Draft, meter: LockMeter) -> None:
        if not (self._may_link(block, name, draft, meter) and draft.link(name)):
            self._write(block, name, draft, meter)
        with meter.hold():
            self._watch.release(block)

    def _may_link(self, block: int, name: str, draft: Draft, meter: LockMeter) -> bool:
        start = block * self._watch.rows
        size = (min(start + self._watch.rows, self._rows) - start) * self._leaf.row_bytes
        earlier = draft.base_record(name)
        if self._changed[block] or earlier is None or earlier.size_bytes != size:
            return False
        # Somebody else may have written to memory that is not the storage's alone; the checksum of what is in it tells.
        return self._is_certain or self._steady(block, meter, _crc) == earlier.crc32

    def _write(self, block: int, name: str, draft: Draft, meter: LockMeter) -> None:
        self._steady(block, meter, lambda pieces: draft.write(name, pieces))

    def _steady(self, block: int, meter: LockMeter, use: Callable[[list[Bytes]], Result]) -> Result:
        """What `use` makes of a block as it was when the save began; again, if somebody wrote to it meanwhile."""
        for _ in range(TRIES):
            with meter.hold():
                pieces, kept = self._watch.held(block, self._rows), self._watch.kept(block)
            result = use([_bytes(piece) for piece in pieces])
            with meter.hold():
                if self._watch.kept(block) == kept:
                    return result
        with meter.hold():  # a block that is written to all the time
            copies = [_bytes(piece.clone()) for piece in self._watch.held(block, self._rows)]
        return use(copies)


def fill_blocks(
    source: Checkpoint, prefix: str, described: dict[str, Any], column: Column, rows: int
) -> Iterator[Callable[[], None]]:
    """Tasks that read a saved column into the first `rows` rows of `column`, in place."""
    per_block = int(described["rows_per_block"])
    for block, start in enumerate(range(0, rows, per_block)):
        target = column.tensor[start : min(start + per_block, rows)]
        yield partial(_fill, source, f"{prefix}{block_name(described['folder'], block)}", target)


def check_blocks(
    source: Checkpoint, prefix: str, described: dict[str, Any], leaf: Leaf, rows: int
) -> Iterator[Callable[[], None]]:
    """Tasks that read a saved column to see whether it is whole, and keep nothing of it."""
    per_block = int(described["rows_per_block"])
    for block, start in enumerate(range(0, rows, per_block)):
        size = (min(start + per_block, rows) - start) * leaf.row_bytes
        yield partial(_check, source, f"{prefix}{block_name(described['folder'], block)}", size)


def folder_of(place: int, leaf: Leaf) -> str:
    """The folder of a column: a number that makes it unique, and the key for people."""
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", key_name(leaf.key).replace(".", "-"))[:LONGEST_NAME]
    return f"{place:03d}-{readable or 'value'}"


def block_name(folder: str, block: int) -> str:
    """The file of one block."""
    return f"{folder}/{block:05d}.bin"


def _fill(source: Checkpoint, name: str, target: Tensor) -> None:
    if target.device.type == "cpu" and target.is_contiguous():
        source.read_into(name, _bytes(target))
        return
    fetched = target.cpu().contiguous().clone()
    source.read_into(name, _bytes(fetched))
    target.copy_(fetched)


def _check(source: Checkpoint, name: str, size: int) -> None:
    source.read_into(name, np.empty(size, np.uint8))


def _bytes(tensor: Tensor) -> Bytes:
    array = numpy_view(tensor.detach().cpu().contiguous()).reshape(-1)
    return array.view(np.uint8)


def _crc(pieces: list[Bytes]) -> int:
    crc = 0
    for piece in pieces:
        crc = zlib.crc32(piece, crc)  # type: ignore[arg-type]
    return crc
