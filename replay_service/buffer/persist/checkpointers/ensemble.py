"""The checkpointer of storages that are seen as one: each by its own."""

from __future__ import annotations

from typing import Any

from replay_service.buffer.persist.checkpointers.base import Apply, Frozen, StagedCheckpointer
from replay_service.buffer.persist.draft import Draft
from replay_service.buffer.persist.lock_meter import LockMeter
from replay_service.buffer.persist.reading import Checkpoint
from replay_service.errors import CheckpointError

__all__ = ["StorageEnsembleCheckpointer"]


class StorageEnsembleCheckpointer(StagedCheckpointer):
    """Saves every storage of a `StorageEnsemble` in a folder of its own, `0` on, as that storage's checkpointer does; all at one moment.

    Changes of records that the ensemble makes on their way out (`transforms`) are settings and stay the ensemble's own.
    """

    layout = "ensemble"

    def freeze(self, storage: Any, base_id: str | None) -> Frozen:
        """Keeps hold of all storages.

        Raises:
            CheckpointError: there are save hooks, or a storage has a checkpointer that saves at once.
        """
        if self.save_hooks:
            raise CheckpointError(
                "save hooks must be registered with the storages of an ensemble, one by one; got some for all of them"
            )
        checkpointers = self._checkpointers(storage)
        frozen: dict[str, Frozen] = {}
        try:
            for name, (part, checkpointer) in checkpointers.items():
                frozen[name] = checkpointer.freeze(part, base_id)
        except BaseException:
            for each in frozen.values():
                each.close()
            raise
        return FrozenStorages(frozen, {name: made.layout for name, (_, made) in checkpointers.items()})

    def read(self, storage: Any, source: Checkpoint, prefix: str, described: dict[str, Any]) -> Apply:
        """Reads all storages.

        Raises:
            CheckpointError: there are more or fewer than were saved, or one was saved by another checkpointer.
        """
        checkpointers = self._checkpointers(storage)
        saved: dict[str, Any] = described["storages"]
        if saved.keys() != checkpointers.keys():
            raise CheckpointError(
                f"storage ({len(checkpointers)} storages) must have as many storages as were saved; got {len(saved)} in {source.folder}"
            )
        for name, (_, checkpointer) in checkpointers.items():
            if saved[name]["layout"] != checkpointer.layout:
                raise CheckpointError(
                    f"storages[{name}] must be laid out as {checkpointer.layout!r} in {source.folder}; got {saved[name]['layout']!r}"
                )
        return {
            name: checkpointer.read(part, source, f"{prefix}{name}/", saved[name])
            for name, (part, checkpointer) in checkpointers.items()
        }

    def _checkpointers(self, storage: Any) -> dict[str, tuple[Any, StagedCheckpointer]]:
        found: dict[str, tuple[Any, StagedCheckpointer]] = {}
        for place, part in enumerate(storage.storages):
            checkpointer = part.checkpointer
            if not isinstance(checkpointer, StagedCheckpointer):
                raise CheckpointError(
                    f"storages[{place}].checkpointer ({type(checkpointer).__name__}) must be a StagedCheckpointer, so that all storages "
                    f"are saved at one moment"
                )
            found[str(place)] = (part, checkpointer)
        return found


class FrozenStorages(Frozen):
    """A moment of all storages."""

    def __init__(self, frozen: dict[str, Frozen], layouts: dict[str, str]) -> None:
        self._frozen = frozen
        self._layouts = layouts

    def write(self, draft: Draft, prefix: str, meter: LockMeter) -> dict[str, Any]:
        """Writes one after the other."""
        described = {
            name: {**frozen.write(draft, f"{prefix}{name}/", meter), "layout": self._layouts[name]}
            for name, frozen in self._frozen.items()
        }
        return {"storages": described}

    def saved(self, checkpoint_id: str) -> None:
        """Passes it on."""
        for frozen in self._frozen.values():
            frozen.saved(checkpoint_id)

    def close(self) -> None:
        """Passes it on."""
        for frozen in self._frozen.values():
            frozen.close()
