"""The columns of a checkpoint, without the buffer that it was made of: to be read by whoever wants to take them elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from replay_service.buffer.persist.checkpointers.base import StagedCheckpointer, run_apply
from replay_service.buffer.persist.checkpointers.flat import FlatStorageCheckpointer
from replay_service.buffer.persist.checkpointers.h5 import H5StorageCheckpointer
from replay_service.buffer.persist.checkpointers.nested import NestedStorageCheckpointer
from replay_service.buffer.persist.checkpointers.tensor import TensorStorageCheckpointer
from replay_service.buffer.persist.reading import Checkpoint
from replay_service.buffer.persist.tree_files import read_tree
from replay_service.buffer.storages.lazy_memmap import LazyMemmapStorage
from replay_service.errors import CheckpointError
from replay_service.specs import Key

__all__ = ["StoredColumns", "opened_checkpoint"]

CHECKPOINTERS: tuple[type[StagedCheckpointer], ...] = (
    TensorStorageCheckpointer,
    FlatStorageCheckpointer,
    NestedStorageCheckpointer,
    H5StorageCheckpointer,
)


class StoredColumns:
    """Records in columns, the oldest first where a cursor tells.

    Args:
        columns: `[slots, *shape]` by nested key.
        oldest: the slot of the oldest record.
    """

    def __init__(self, columns: dict[Key, Tensor], oldest: int) -> None:
        self.columns = columns
        self._oldest = oldest

    def __len__(self) -> int:
        return int(next(iter(self.columns.values())).shape[0])

    def rows(self, key: Key, start: int, stop: int) -> Tensor:
        """The records from `start` to `stop` of one column, as a copy `[n, *shape]`."""
        slots = (torch.arange(start, stop, device="cpu") + self._oldest) % max(1, len(self))
        return self.columns[key][slots]


@contextmanager
def opened_checkpoint(path: str | os.PathLike[str]) -> Iterator[StoredColumns]:
    """The columns of a buffer's checkpoint, in temporary memory-mapped files, so that they may be larger than memory.

    Raises:
        FileNotFoundError, CheckpointError: as `ReplayBuffer.loads`; or the records are no columns, or there is none.
    """
    source = Checkpoint(path, "buffer")
    described: dict[str, Any] = source.entry("storage")
    made = next((kind for kind in CHECKPOINTERS if kind.layout == described.get("layout")), None)
    if made is None or not described.get("columns"):
        raise CheckpointError(
            f"path ({source.folder}) must hold records in columns to be taken elsewhere; got layout {described.get('layout')!r}, "
            f"{len(described.get('columns', ()))} columns"
        )
    lanes = tuple(described["lanes"])
    filled = int(described["filled"])
    storage = LazyMemmapStorage(max(1, filled) * int(torch.Size(lanes).numel()), ndim=1 + len(lanes))
    try:
        run_apply(made().read(storage, source, "storage/", described))
        writer = read_tree(source, "state").get("writer", {})
        capacity = int(described.get("slots", filled))
        oldest = int(writer.get("cursor", 0)) if filled == capacity else 0
        keys = [leaf.key for leaf in storage.leaves() or ()]
        yield StoredColumns({key: storage.column(key)[:filled] for key in keys}, oldest % max(1, filled))
    finally:
        storage.cleanup()
