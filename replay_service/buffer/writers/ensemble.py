"""The writers of several buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from replay_service.buffer.ensemble.loading import load_each, states_of
from replay_service.buffer.ensemble.members import member_index
from replay_service.buffer.storages.base import Storage
from replay_service.buffer.writers.base import Writer
from replay_service.errors import ReplayError

__all__ = ["WriterEnsemble"]


class WriterEnsemble(Writer):
    """One writer for each storage of a `StorageEnsemble`. It writes nothing itself: a record goes to one of the buffers.

    Args:
        *writers: the writers, in the order of the storages.

    Raises:
        TypeError: one of them is no writer.
        ValueError: there is none.
    """

    def __init__(self, *writers: Writer) -> None:
        if not writers:
            raise ValueError("writers must be at least one; got none")
        for place, writer in enumerate(writers):
            if not isinstance(writer, Writer):
                raise TypeError(f"writers[{place}] must be a Writer; got {type(writer).__name__}")
        super().__init__()
        self.writers = tuple(writers)

    def __len__(self) -> int:
        return len(self.writers)

    def __getitem__(self, index: int) -> Writer:
        return self.writers[index]

    def check_storage(self, storage: Storage) -> None:
        """Checks that there is a storage for each writer.

        Raises:
            ValueError: there is not, or a writer cannot write to its own.
            TypeError: it is no ensemble.
        """
        parts = getattr(storage, "storages", None)
        if parts is None:
            raise TypeError(f"storage ({type(storage).__name__}) must be a StorageEnsemble for a WriterEnsemble")
        if len(parts) != len(self.writers):
            raise ValueError(f"writers ({len(self.writers)}) must be one per storage; got {len(parts)} storages")
        for writer, part in zip(self.writers, parts, strict=True):
            writer.check_storage(part)

    def register_storage(self, storage: Storage) -> None:
        """Connects each writer with its storage, if it is not: one that writes already goes on where it stands."""
        super().register_storage(storage)
        parts: tuple[Storage, ...] = getattr(storage, "storages", ())
        for writer, part in zip(self.writers, parts, strict=True):
            if _storage_of(writer) is not part:
                writer.register_storage(part)

    def require_writable(self) -> None:
        """Raises RuntimeError if one of the writers may neither add nor forget records."""
        for writer in self.writers:
            writer.require_writable()

    @property
    def write_count(self) -> int:
        """Records written by all of them."""
        return sum(writer.write_count for writer in self.writers)

    @property
    def tracks_generations(self) -> bool:
        """Whether every write of every one of them is stamped."""
        return all(writer.tracks_generations for writer in self.writers)

    def generations_of(self, index: Any) -> Tensor:
        """Stamps int64, of the shape of `index["buffer_ids"]`; -1 where there is none.

        Args:
            index: as samples carry it.

        Raises:
            TypeError, ValueError, IndexError: as `member_index`.
        """
        named = member_index(index, len(self.writers))
        stamps = torch.full((len(named),), -1, dtype=torch.int64, device="cpu")
        for member, rows in named.groups():
            local = named.local[rows]
            stamps[rows] = self.writers[member].generations_of(local if local.ndim == 1 else local[:, 0])
        return stamps.reshape(named.shape)

    def add(self, data: Any = None) -> int | Tensor:
        """Refuses, as `extend`."""
        return self.extend(data)

    def extend(self, data: Any = None) -> Tensor:
        """Refuses.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("records must be given to one writer: an ensemble of them does not know which one is meant")

    def empty(self, empty_write_count: bool = True) -> None:
        """Lets each of them start over."""
        for writer in self.writers:
            writer.empty(empty_write_count)

    def state_dict(self) -> dict[str, Any]:
        """Their states by number."""
        return states_of(self.writers)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the states over; all or none."""
        load_each(self.writers, state_dict)

    def dumps(self, path: str | Path) -> None:
        """Writes each state into a folder of its own, `0` on, in the folder `path`."""
        for place, writer in enumerate(self.writers):
            writer.dumps(Path(path) / str(place))

    def loads(self, path: str | Path) -> None:
        """Reads the states that `dumps` wrote."""
        for place, writer in enumerate(self.writers):
            writer.loads(Path(path) / str(place))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(type(writer).__name__ for writer in self.writers)})"


def _storage_of(writer: Writer) -> Storage | None:
    try:
        return writer.storage
    except ReplayError:
        return None
