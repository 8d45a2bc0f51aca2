"""The parts of a buffer in a checkpoint: its records by the storage's checkpointer, everything else as a tree."""

from __future__ import annotations

import copy
from typing import Any

import torch

from replay_service.buffer.persist.checkpointers.base import (
    Apply,
    Frozen,
    StagedCheckpointer,
    StorageCheckpointerBase,
    require_layout,
)
from replay_service.buffer.persist.draft import Draft
from replay_service.buffer.persist.lock_meter import LockMeter
from replay_service.buffer.persist.reading import Checkpoint
from replay_service.errors import CheckpointError, ReplayError

__all__ = ["RECORDS", "freeze_records", "read_records", "require_state"]

RECORDS = "storage"
OWN_LAYOUT = "own"


def freeze_records(checkpointer: StorageCheckpointerBase, storage: Any, draft: Draft) -> Frozen:
    """A moment of the records; the caller holds the lock. A user's own checkpointer writes them at once."""
    if isinstance(checkpointer, StagedCheckpointer):
        return FrozenRecords(checkpointer.freeze(storage, draft.base_id), checkpointer.layout)
    folder = draft.place_of(f"{RECORDS}/x").parent
    checkpointer.dumps(storage, folder)
    return WrittenRecords(type(checkpointer).__name__)


def read_records(checkpointer: StorageCheckpointerBase, storage: Any, source: Checkpoint) -> Apply:
    """Reads and checks the records.

    Raises:
        CheckpointError: they were saved by another checkpointer, or a file is damaged.
        LayoutError: they do not fit the storage.
    """
    if isinstance(checkpointer, StagedCheckpointer):
        return checkpointer.read(storage, source, f"{RECORDS}/", require_layout(source, checkpointer))
    described = source.entry(RECORDS)
    if described.get("layout") != OWN_LAYOUT or described.get("checkpointer") != type(checkpointer).__name__:
        raise CheckpointError(
            f"path ({source.folder}) must hold records saved by a {type(checkpointer).__name__}; got layout "
            f"{described.get('layout')!r}: load it with the checkpointer that saved it"
        )
    for name in source.manifest.files:
        if name.startswith(f"{RECORDS}/"):
            source.read(name)  # compares the checksum
    return lambda: checkpointer.loads(storage, source.folder / RECORDS)


def require_state(source: Checkpoint, parts: dict[str, Any], storage: Any, state: dict[str, Any]) -> None:
    """Checks that parts of a buffer (`sampler`, `writer`) can take over what was saved of theirs, on copies of them.

    Raises:
        CheckpointError: they cannot; nothing was loaded.
    """
    if not isinstance(state, dict):
        raise CheckpointError(f"path ({source.folder}) must hold the state of a buffer; got a {type(state).__name__}")
    stored = {id(part): part for part in (storage, *getattr(storage, "storages", ()))}
    for name, part in parts.items():
        saved = state.get(name)
        own = part.state_dict()
        if not isinstance(saved, dict) or saved.keys() != own.keys():
            kind = (
                state.get("parts", {}).get(name, "another one")
                if isinstance(state.get("parts"), dict)
                else "another one"
            )
            raise CheckpointError(
                f"{name} ({type(part).__name__}) must be of the kind that was saved; got the state of {kind} in {source.folder}: make the "
                f"buffer with the same {name}"
            )
        try:
            # Storages are not copied: samplers only look at them.
            copy.deepcopy(part, dict(stored)).load_state_dict(saved)
        except (ReplayError, KeyError, TypeError, ValueError, IndexError, RuntimeError, AttributeError) as error:
            raise CheckpointError(
                f"{name} ({type(part).__name__}) must be able to take over what {source.folder} says of it; {error}"
            ) from error
    generator = storage.generator
    if generator is not None and state.get("generator") is not None:
        try:
            torch.Generator(generator.device).set_state(state["generator"])
        except (RuntimeError, TypeError) as error:
            raise CheckpointError(
                f"generator ({generator.device}) must be of the kind that was saved in {source.folder}; {error}"
            ) from error


class FrozenRecords(Frozen):
    """A moment that one of this library's checkpointers holds, and what the manifest calls its layout."""

    def __init__(self, frozen: Frozen, layout: str) -> None:
        self._frozen = frozen
        self._layout = layout

    def write(self, draft: Draft, prefix: str, meter: LockMeter) -> dict[str, Any]:
        """Writes it."""
        return {**self._frozen.write(draft, prefix, meter), "layout": self._layout}

    def saved(self, checkpoint_id: str) -> None:
        """Passes it on."""
        self._frozen.saved(checkpoint_id)

    def close(self) -> None:
        """Passes it on."""
        self._frozen.close()


class WrittenRecords(Frozen):
    """Records that a user's own checkpointer has written already."""

    def __init__(self, name: str) -> None:
        self._name = name

    def write(self, draft: Draft, prefix: str, meter: LockMeter) -> dict[str, Any]:
        """Nothing is left to be written."""
        return {"layout": OWN_LAYOUT, "checkpointer": self._name}
