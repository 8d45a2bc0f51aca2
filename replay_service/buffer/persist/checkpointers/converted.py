"""Records that go through hooks on their way into and out of a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tensordict import is_tensor_collection

from replay_service.buffer.persist.checkpointers.base import Apply, Frozen, Hook
from replay_service.buffer.persist.draft import Draft
from replay_service.buffer.persist.lock_meter import LockMeter
from replay_service.buffer.persist.reading import Checkpoint
from replay_service.buffer.persist.tree_files import read_tree, write_tree
from replay_service.errors import CheckpointError
from replay_service.sources import SOURCES
from replay_service.specs import spec_from_json
from replay_service.structure import Rows, flatten_rows, folded

__all__ = ["FrozenRecords", "WriteData", "read_records"]

RECORDS = "records"
STAMPS = "generations"

WriteData = Callable[[Draft, str, Any], None]
ReadData = Callable[[Checkpoint, str], Any]


class FrozenRecords(Frozen):
    """A copy of all records at one moment, which hooks make something else of.

    Args:
        storage: a columnar storage that is not empty; its lock is held.
        hooks: called one after the other with the data and `path=`, the folder that is being written; those that have attributes `shift`
            (the slot that is written next) and `is_full` are told them first.
        write_data: writes what comes out. None: as a tree.
    """

    def __init__(self, storage: Any, hooks: Sequence[Hook], write_data: WriteData | None = None) -> None:
        data = storage.get(slice(None))
        self._data = data.cpu() if hasattr(data, "cpu") else data
        self._hooks = list(hooks)
        self._write_data = write_data or _write_records
        self._shift, self._is_full = int(storage.cursor), storage.filled == storage.slots
        leaves = storage.leaves() or ()
        self._described = {
            "converted": True,
            "spec": storage.table.spec,
            "columns": [
                {"key": list(leaf.key), "dtype": str(leaf.dtype).removeprefix("torch."), "shape": list(leaf.shape)}
                for leaf in leaves
            ],
            "lanes": list(storage.lane_shape),
            "filled": int(storage.filled),
            "slots": int(storage.slots),
            "sources": storage.table.sources(int(storage.filled) * storage.lanes),
        }
        stamps = storage.generations
        self._stamps = None if stamps is None else stamps.state_dict()

    def write(self, draft: Draft, prefix: str, meter: LockMeter) -> dict[str, Any]:
        """Runs the hooks, without the lock, and writes what they made."""
        data = self._data
        for hook in self._hooks:
            if hasattr(hook, "shift"):
                hook.shift = self._shift
            if hasattr(hook, "is_full"):
                hook.is_full = self._is_full
            data = hook(data, path=draft.place_of(f"{prefix}{RECORDS}").parent)
        self._write_data(draft, prefix, data)
        write_tree(draft, f"{prefix}{STAMPS}", self._stamps)
        return self._described


def read_records(
    storage: Any,
    source: Checkpoint,
    prefix: str,
    described: dict[str, Any],
    hooks: Sequence[Hook],
    read_data: ReadData | None = None,
) -> Apply:
    """Reads what hooks made of records, lets `hooks` make records of it again, and checks that those fit.

    Raises:
        CheckpointError: a file is damaged, or the hooks made no records.
        LayoutError: the records do not fit the storage.
    """
    SOURCES.add(described.get("sources", ()))
    data = (read_data or _read_records)(source, prefix)
    for hook in hooks:
        data = hook(data)
    if not is_tensor_collection(data) or data.ndim < storage.ndim:
        raise CheckpointError(
            f"path ({source.folder}) must give records again; the load hooks {[_name(hook) for hook in hooks]} gave a "
            f"{type(data).__name__}: register those that undo what the save hooks did"
        )
    raw = flatten_rows(data, leading=storage.ndim)
    lanes = tuple(raw.tensors[0].shape[1 : storage.ndim])
    rows = _as_saved(folded(raw, (raw.count, *lanes)), described)
    stamps = read_tree(source, f"{prefix}{STAMPS}")
    filled = rows.count // max(1, math.prod(lanes))
    with storage.lock:
        table = storage.room_for(rows.leaves(), rows.spec, lanes, filled)

    def apply() -> None:
        table.write(0, table.checked(rows))
        storage.adopt(table, lanes, filled, stamps)

    return apply


def _as_saved(rows: Rows, described: dict[str, Any]) -> Rows:
    """Rows in the order and form that the storage had them in, if hooks gave all of them back."""
    order = [tuple(column["key"]) for column in described["columns"]]
    if set(order) != set(rows.keys):
        return rows
    tensors = dict(zip(rows.keys, rows.tensors, strict=True))
    return Rows(order, [tensors[key] for key in order], spec_from_json(described["spec"]), rows.count)


def _write_records(draft: Draft, prefix: str, data: Any) -> None:
    write_tree(draft, f"{prefix}{RECORDS}", data)


def _read_records(source: Checkpoint, prefix: str) -> Any:
    return read_tree(source, f"{prefix}{RECORDS}")


def _name(hook: Any) -> str:
    return getattr(hook, "__name__", type(hook).__name__)
