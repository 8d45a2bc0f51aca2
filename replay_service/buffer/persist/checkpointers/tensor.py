"""The checkpointer of columnar storages: raw columns in blocks, of which a later save writes those that changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from replay_service.buffer.changes import Watch
from replay_service.buffer.columns import Column
from replay_service.buffer.persist.checkpointers.base import Apply, Frozen, StagedCheckpointer
from replay_service.buffer.persist.checkpointers.converted import FrozenRecords, read_records
from replay_service.buffer.persist.column_blocks import FrozenColumn, check_blocks, fill_blocks
from replay_service.buffer.persist.draft import Draft
from replay_service.buffer.persist.lock_meter import LockMeter
from replay_service.buffer.persist.reading import Checkpoint
from replay_service.buffer.persist.tree_files import read_tree, write_tree
from replay_service.buffer.table import Table
from replay_service.errors import CheckpointError
from replay_service.sources import SOURCES
from replay_service.specs import Spec, spec_from_json
from replay_service.structure import Leaf

__all__ = ["TensorStorageCheckpointer"]

STAMPS = "generations"


class TensorStorageCheckpointer(StagedCheckpointer):
    """Saves the columns of a tensor or memory-mapped storage as they are.

    Each column becomes a folder of block files. A save that follows another one writes the blocks that were written to since, and links
    the others. With save hooks (`TED2Flat` and the like) what they make of the records is saved instead, as a whole, and the load hooks
    make records of it again.
    """

    layout = "columns"

    def freeze(self, storage: Any, base_id: str | None) -> Frozen:
        """Keeps hold of the columns as they are now, without copying them; with save hooks, or shared columns, copies the records."""
        if self.save_hooks and storage.table is not None:
            return FrozenRecords(storage, self.save_hooks)
        return FrozenTable(storage, base_id)

    def read(self, storage: Any, source: Checkpoint, prefix: str, described: dict[str, Any]) -> Apply:
        """Reads new columns, or checks what will be read into those that are there, which takes no memory but reads the files twice."""
        if described["converted"]:
            return read_records(storage, source, prefix, described, self.load_hooks)
        if self.load_hooks and described["columns"]:
            raise CheckpointError(
                f"path ({source.folder}) must hold records that went through save hooks for the load hooks "
                f"{[type(hook).__name__ for hook in self.load_hooks]}; got columns as they are: load it without"
            )
        return _read_table(storage, source, prefix, described)


class FrozenTable(Frozen):
    """All columns of a storage at one moment."""

    def __init__(self, storage: Any, base_id: str | None) -> None:
        table: Table | None = storage.table
        self._columns: list[Column] = [] if table is None else table.columns
        self._spec = None if table is None else table.spec
        self._lanes = tuple(storage.lane_shape)
        self._filled, self._slots = int(storage.filled), int(storage.slots)
        stamps = storage.generations
        self._stamps = None if stamps is None else stamps.state_dict()
        rows = self._filled * storage.lanes
        self._sources = [] if table is None else table.sources(rows)
        if storage.is_shared:
            # What other processes write is not announced, so that only a copy holds still.
            self._columns = [Column(column.leaf, column.tensor[:rows].clone()) for column in self._columns]
        self._frozen = [
            FrozenColumn(column, rows, place, base_id, storage.watches_writes)
            for place, column in enumerate(self._columns)
        ]

    def write(self, draft: Draft, prefix: str, meter: LockMeter) -> dict[str, Any]:
        """Writes the blocks that changed, and links the others."""
        draft.run([task for frozen in self._frozen for task in frozen.tasks(draft, prefix, meter)])
        write_tree(draft, f"{prefix}{STAMPS}", self._stamps)
        return {
            "converted": False,
            "spec": self._spec,
            "columns": [frozen.description for frozen in self._frozen],
            "lanes": list(self._lanes),
            "filled": self._filled,
            "slots": self._slots,
            "sources": self._sources,
        }

    def saved(self, checkpoint_id: str) -> None:
        """Remembers which checkpoint the next save can link from."""
        for frozen in self._frozen:
            frozen.saved(checkpoint_id)

    def close(self) -> None:
        """Lets writers write without a copy again."""
        for frozen in self._frozen:
            frozen.close()


def _read_table(storage: Any, source: Checkpoint, prefix: str, described: dict[str, Any]) -> Apply:
    lanes, filled = tuple(described["lanes"]), int(described["filled"])
    SOURCES.add(described.get("sources", ()))
    stamps = read_tree(source, f"{prefix}{STAMPS}")
    saved: list[dict[str, Any]] = described["columns"]
    if not saved:
        return lambda: storage.adopt(None, lanes, filled, stamps)
    leaves = [_leaf_of(source, column) for column in saved]
    spec: Spec = spec_from_json(described["spec"])
    rows = filled * math.prod(lanes)
    with storage.lock:
        is_new = storage.table is None
        table: Table = storage.room_for(leaves, spec, lanes, filled)

    def filling() -> Iterator[Callable[[], None]]:
        for column in saved:
            yield from fill_blocks(source, prefix, column, table.column(tuple(column["key"])), rows)

    try:
        if is_new:
            source.run(filling())
        else:
            source.run(
                task
                for leaf, column in zip(leaves, saved, strict=True)
                for task in check_blocks(source, prefix, column, leaf, rows)
            )
    except BaseException:
        if is_new:
            storage.drop(table)
        raise

    def apply() -> None:
        if not is_new:
            for column in table.columns:
                if column.watch is not None:
                    column.watch.before(0, rows)
            source.run(filling())
        _remember(table.columns, saved, source.manifest.id)
        storage.adopt(table, lanes, filled, stamps)

    return apply


def _remember(columns: Sequence[Column], saved: list[dict[str, Any]], checkpoint_id: str) -> None:
    """Columns that were just loaded are those of the checkpoint: the next save has to write only what changes from now on."""
    per_block = {tuple(column["key"]): int(column["rows_per_block"]) for column in saved}
    places = {tuple(column["key"]): place for place, column in enumerate(saved)}
    for place, column in enumerate(columns):
        if column.watch is None:
            column.watch = Watch(column.tensor, column.leaf.row_bytes)
        if column.watch.rows == per_block[column.leaf.key] and places[column.leaf.key] == place:
            column.watch.remember(checkpoint_id, column.watch.pass_moment())


def _leaf_of(source: Checkpoint, column: dict[str, Any]) -> Leaf:
    dtype = getattr(torch, column["dtype"], None)
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError(
            f"path ({source.folder}) must hold dtypes that this torch {torch.__version__} has; got {column['dtype']}"
        )
    return Leaf(tuple(column["key"]), dtype, tuple(column["shape"]))
