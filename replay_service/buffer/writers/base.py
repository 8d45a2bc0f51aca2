"""The writer interface: which slot a new record goes to."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from replay_service.buffer.index import Index
from replay_service.buffer.storages.base import Batch, Storage
from replay_service.errors import ReplayError

__all__ = ["Writer"]


class Writer(ABC):
    """Base of all writers.

    A writer is registered with one storage. The buffer calls it under its lock, with records that the storage has prepared; called
    directly with raw data it lets the storage validate them first, so that a refused batch changes nothing.
    """

    refuses_records: bool = False
    """Whether records may get no slot: `extend` then gives -1 for them."""

    keeps_order: bool = True
    """Whether neighbouring slots hold records that were written one after the other."""

    def __init__(self, compilable: bool = False) -> None:
        self._storage: Storage | None = None
        self._write_count = 0

    @property
    def storage(self) -> Storage:
        """The registered storage.

        Raises:
            ReplayError: none was registered.
        """
        if self._storage is None:
            raise ReplayError(f"{type(self).__name__} must be registered with a storage first (register_storage)")
        return self._storage

    def check_storage(self, storage: Storage) -> None:  # noqa: B027 - most writers write to any
        """Raises ValueError if this writer cannot write to such a storage."""

    def require_writable(self) -> None:  # noqa: B027
        """Raises RuntimeError if records may be neither added nor forgotten."""

    def check_records(self, batch: Batch) -> None:  # noqa: B027
        """Raises what `extend` would on prepared records; nothing changes."""

    def register_storage(self, storage: Storage) -> None:
        """Makes `storage` the one this writer writes to."""
        self.check_storage(storage)
        self._storage = storage

    @property
    def write_count(self) -> int:
        """Records written since the start (or the last `empty`), overwritten ones included."""
        return self._write_count

    @property
    def tracks_generations(self) -> bool:
        """Whether every write is stamped, so that `index_generation` can be given out."""
        return False

    def generations_of(self, index: Index) -> Tensor:
        """Stamps int64 of the slots `index` (int64, any shape; or a tuple of coordinates, whose first names the slot); -1 for none."""
        return torch.full_like(first_coordinate(index), -1)

    @abstractmethod
    def add(self, data: Any) -> int | Tensor:
        """Writes one record and returns its slot (with lanes: the coordinates `[lanes, ndim]` of one slot of every lane)."""

    @abstractmethod
    def extend(self, data: Any) -> Tensor:
        """Writes a batch and returns the slot of every record, int64 `[B]` (with lanes: coordinates `[B * lanes, ndim]`)."""

    def mark_update(self, records: Tensor) -> None:  # noqa: B027 - where slots do not depend on what is in them
        """Is told of records that were changed in place, flat numbers int64 `[n]`."""

    def empty(self, empty_write_count: bool = True) -> None:
        """Starts over at the first slot; the storage is emptied by the buffer."""
        if empty_write_count:
            self._write_count = 0

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that `load_state_dict` needs, by copy."""

    @abstractmethod
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a state over."""

    def dumps(self, path: str | Path) -> None:
        """Writes the state as `writer.json` into the folder `path`."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "writer.json").write_text(json.dumps(self.state_dict()))

    def loads(self, path: str | Path) -> None:
        """Reads the state that `dumps` wrote."""
        self.load_state_dict(json.loads((Path(path) / "writer.json").read_text()))


def first_coordinate(index: Index) -> Tensor:
    """The slots (first dimension) that an index names, as an int64 tensor."""
    if isinstance(index, tuple):
        index = index[0]
    return torch.as_tensor(index, dtype=torch.int64, device="cpu")
