"""The checkpointer interface: how the records of a storage come into a checkpoint, and out of it.

A save has two steps, so that calls go on during the longer one: `freeze` holds the storage's lock and keeps hold of a moment, and what it
returns writes that moment to disk. So has a load: `read` checks everything, and what it returns changes the storage and cannot fail for
what was saved.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from replay_service.buffer.persist.draft import Draft
from replay_service.buffer.persist.lock_meter import LockMeter
from replay_service.buffer.persist.reading import Checkpoint
from replay_service.errors import CheckpointError

__all__ = [
    "Frozen",
    "StagedCheckpointer",
    "StorageCheckpointerBase",
    "checked_checkpointer",
    "require_layout",
    "saving",
]

Apply: TypeAlias = "Callable[[], None] | dict[str, Apply]"
Hook = Callable[..., Any]


class StorageCheckpointerBase(ABC):
    """Base of all checkpointers. One of your own needs `dumps` and `loads` only; it is then called under the buffer's lock.

    Attributes:
        save_hooks: functions `hook(data, path=folder)` that records go through before they are saved.
        load_hooks: functions `hook(data)` that they go through when they are loaded.
    """

    is_staged: bool = False
    """Whether saves and loads have two steps (`StagedCheckpointer`)."""

    def __init__(self) -> None:
        self.save_hooks: list[Hook] = []
        self.load_hooks: list[Hook] = []

    def register_save_hook(self, hook: Hook) -> None:
        """Adds `hook(data, path=folder)`, which records go through on their way into a checkpoint."""
        self.save_hooks.append(hook)

    def register_load_hook(self, hook: Hook) -> None:
        """Adds `hook(data)`, which records go through on their way out of a checkpoint."""
        self.load_hooks.append(hook)

    @abstractmethod
    def dumps(self, storage: Any, path: str | os.PathLike[str]) -> None:
        """Saves the records of a storage into the folder `path`."""

    @abstractmethod
    def loads(self, storage: Any, path: str | os.PathLike[str]) -> None:
        """Loads into a storage what `dumps` saved."""


class Frozen(ABC):
    """A moment of a storage on its way to disk."""

    @abstractmethod
    def write(self, draft: Draft, prefix: str, meter: LockMeter) -> dict[str, Any]:
        """Writes it, and returns what the manifest is to say of it; the caller does not hold the lock, `meter` gives it."""

    def saved(self, checkpoint_id: str) -> None:  # noqa: B027 - most know by digests what has changed since
        """Is told, under the lock, that it became part of a checkpoint."""

    def close(self) -> None:  # noqa: B027
        """Is told, under the lock, that the save is over, however it ended."""


class StagedCheckpointer(StorageCheckpointerBase):
    """Base of this library's checkpointers: `dumps` and `loads` out of the two steps of each."""

    is_staged = True

    layout: str = ""
    """What the manifest calls the way in which this checkpointer lays records out."""

    @abstractmethod
    def freeze(self, storage: Any, base_id: str | None) -> Frozen:
        """Keeps hold of the storage as it is now; the caller holds its lock. `base_id`: the checkpoint that files can be linked from.

        Raises:
            CheckpointError, LayoutError: it holds what this checkpointer cannot save.
        """

    @abstractmethod
    def read(self, storage: Any, source: Checkpoint, prefix: str, described: dict[str, Any]) -> Apply:
        """Reads and checks all that was saved under `prefix`, as `described` by `Frozen.write`.

        Returns:
            what changes the storage, or each of those that it is made of, by name; the caller holds its lock for that.

        Raises:
            CheckpointError: a file is missing or damaged. The storage is as before.
            LayoutError: the records do not fit the storage, which is as before.
        """

    def dumps(self, storage: Any, path: str | os.PathLike[str]) -> None:
        """Saves a storage as a checkpoint of its own at `path`.

        Raises:
            CheckpointError: something else lies at `path`, or a record cannot be saved. Nothing was changed there.
            OSError: the disk is full, or cannot be written to. Nothing was changed there.
        """
        meter = LockMeter(storage.lock)
        with saving(storage), Draft(path, "storage", storage.last_saved) as draft:
            with meter.hold():
                frozen = self.freeze(storage, draft.base_id)
            try:
                described = frozen.write(draft, "", meter)
                manifest = draft.commit({"storage": {**described, "layout": self.layout}})
                with meter.hold():
                    frozen.saved(manifest.id)
                    storage.last_saved = draft.path
            finally:
                with meter.hold():
                    frozen.close()

    def loads(self, storage: Any, path: str | os.PathLike[str]) -> None:
        """Loads a checkpoint of a storage.

        Raises:
            FileNotFoundError: nothing lies at `path`.
            CheckpointError: what lies there is no whole checkpoint of a storage. The storage is as before.
            LayoutError: its records do not fit the storage, which is as before.
        """
        source = Checkpoint(path, "storage")
        described = require_layout(source, self)
        apply = self.read(storage, source, "", described)
        with storage.lock:
            run_apply(apply)
            storage.last_saved = Path(source.folder)


def run_apply(apply: Apply) -> None:
    """Does what `StagedCheckpointer.read` prepared."""
    if isinstance(apply, dict):
        for part in apply.values():
            run_apply(part)
    else:
        apply()


@contextmanager
def saving(storage: Any) -> Iterator[None]:
    """Keeps other saves of a storage, and of the storages that it is made of, waiting; taken before their locks."""
    with ExitStack() as stack:
        for part in (storage, *getattr(storage, "storages", ())):
            stack.enter_context(part.save_lock)
        yield


def checked_checkpointer(given: Any) -> StorageCheckpointerBase | None:
    """`given`, if it is a checkpointer or None.

    Raises:
        TypeError: it is something else.
    """
    if given is not None and not isinstance(given, StorageCheckpointerBase):
        raise TypeError(f"checkpointer must be a StorageCheckpointerBase; got {type(given).__name__}: pass an instance")
    return given


def require_layout(source: Checkpoint, checkpointer: StagedCheckpointer) -> dict[str, Any]:
    """What the manifest says of a storage that `checkpointer` can read.

    Raises:
        CheckpointError: the storage was saved by another checkpointer.
    """
    described: dict[str, Any] = source.entry("storage")
    found = described.get("layout")
    if found != checkpointer.layout:
        raise CheckpointError(
            f"path ({source.folder}) must hold records laid out as {checkpointer.layout!r}; got {found!r}: load it into a storage with the "
            f"checkpointer that saved it"
        )
    return described
