"""The checkpointer of compressed records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replay_service.buffer.persist.checkpointers.base import Frozen
from replay_service.buffer.persist.checkpointers.list import FrozenList, ListStorageCheckpointer
from replay_service.buffer.persist.reading import Checkpoint
from replay_service.buffer.storages.packed_records import is_pickled
from replay_service.errors import CheckpointError

__all__ = ["CompressedListStorageCheckpointer"]


class CompressedListStorageCheckpointer(ListStorageCheckpointer):
    """Saves compressed records as they are. Each is decompressed once, to see whether it was pickled, and, when it is loaded, whether it is
    whole.

    Args:
        allow_pickle: save and load records that are pickled, those not made of dense tensors: reading one runs what it says, so only for
            checkpoints from a place you trust.
    """

    layout = "compressed"

    def freeze(self, storage: Any, base_id: str | None) -> Frozen:
        """Keeps hold of the records."""
        if self.save_hooks:
            raise CheckpointError(f"save hooks must be for columns of tensors; got a {type(storage).__name__}")
        check = None if self.allow_pickle else self.check_of(storage, None)
        return FrozenList(storage, self.layout, self.allow_pickle, check)

    def check_of(self, storage: Any, source: Checkpoint | None) -> Callable[[Any], None]:
        """Refuses records that cannot be decompressed, or are pickled, unless that is allowed."""

        def check(record: Any) -> None:
            if is_pickled(storage.packed(record)) and not self.allow_pickle:
                raise CheckpointError(
                    "record must be made of dense tensors to be saved and loaded without pickle; give the storage a "
                    "CompressedListStorageCheckpointer(allow_pickle=True) if its checkpoints come from a place you trust"
                )

        return check
