"""The checkpointer of storages of Python objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replay_service.buffer.persist.checkpointers.base import Apply, Frozen, StagedCheckpointer
from replay_service.buffer.persist.draft import Draft
from replay_service.buffer.persist.lock_meter import LockMeter
from replay_service.buffer.persist.reading import Checkpoint
from replay_service.buffer.persist.record_blocks import read_record_blocks, write_record_blocks
from replay_service.buffer.persist.tree_files import read_tree, write_tree
from replay_service.errors import CheckpointError

__all__ = ["FrozenList", "ListStorageCheckpointer"]

RECORDS, STAMPS = "records", "generations"


class ListStorageCheckpointer(StagedCheckpointer):
    """Saves records one by one: tensors, TensorDicts, arrays, texts, numbers, and containers of these. Loading runs no code.

    Args:
        allow_pickle: pickle objects of other kinds, and unpickle them, which runs what they say: only for checkpoints from a place you
            trust. False refuses to save and to load them.
    """

    layout = "records"

    def __init__(self, *, allow_pickle: bool = False) -> None:
        super().__init__()
        self.allow_pickle = allow_pickle

    def freeze(self, storage: Any, base_id: str | None) -> Frozen:
        """Keeps hold of the records, which are never changed, only replaced."""
        if self.save_hooks:
            raise CheckpointError(f"save hooks must be for columns of tensors; got a {type(storage).__name__}")
        return FrozenList(storage, self.layout, self.allow_pickle)

    def read(self, storage: Any, source: Checkpoint, prefix: str, described: dict[str, Any]) -> Apply:
        """Reads all records."""
        storage.require_room(int(described["count"]))
        check = self.check_of(storage, source)
        records = read_record_blocks(source, f"{prefix}{RECORDS}", described, self.allow_pickle, check)
        stamps = read_tree(source, f"{prefix}{STAMPS}")
        return lambda: storage.adopt(records, stamps)

    def check_of(self, storage: Any, source: Checkpoint) -> Callable[[Any], None]:
        """What raises for a record that was saved and does not fit."""
        check: Callable[[Any], None] = storage.check_kept
        return check


class FrozenList(Frozen):
    """The records of a storage at one moment.

    Args:
        storage: the storage; its lock is held.
        layout: what blocks of an earlier checkpoint must have been laid out as to be linked.
        allow_pickle: as the checkpointer's.
        check: raises for a record that must not be saved.
    """

    def __init__(
        self, storage: Any, layout: str, allow_pickle: bool, check: Callable[[Any], None] | None = None
    ) -> None:
        self._records = storage.kept_records()
        self._layout = layout
        self._allow_pickle = allow_pickle
        self._check = check
        stamps = storage.generations
        self._stamps = None if stamps is None else stamps.state_dict()

    def write(self, draft: Draft, prefix: str, meter: LockMeter) -> dict[str, Any]:
        """Writes the blocks that changed, and links the others."""
        if self._check is not None:
            for record in self._records:
                self._check(record)
        earlier = draft.base_content.get("storage", {})
        per_block = earlier.get("per_block") if earlier.get("layout") == self._layout else None
        described = write_record_blocks(draft, f"{prefix}{RECORDS}", self._records, per_block, self._allow_pickle)
        write_tree(draft, f"{prefix}{STAMPS}", self._stamps)
        return dict(described)
