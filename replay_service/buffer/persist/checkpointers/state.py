"""The checkpointer of any storage: what its `state_dict` says."""

from __future__ import annotations

from typing import Any

from replay_service.buffer.persist.checkpointers.base import Apply, Frozen, StagedCheckpointer
from replay_service.buffer.persist.draft import Draft
from replay_service.buffer.persist.lock_meter import LockMeter
from replay_service.buffer.persist.reading import Checkpoint
from replay_service.buffer.persist.tree_files import read_tree, write_tree
from replay_service.errors import CheckpointError

__all__ = ["StateCheckpointer"]

STATE = "state"


class StateCheckpointer(StagedCheckpointer):
    """Saves what `state_dict` says, made under the lock, and hands it to `load_state_dict`; for storages of your own.

    Args:
        allow_pickle: pickle what cannot be saved otherwise, and unpickle it; only for checkpoints from a place you trust.
    """

    layout = "state"

    def __init__(self, *, allow_pickle: bool = False) -> None:
        super().__init__()
        self.allow_pickle = allow_pickle

    def freeze(self, storage: Any, base_id: str | None) -> Frozen:
        """Takes a state."""
        if self.save_hooks:
            raise CheckpointError(f"save hooks must be for columns of tensors; got a {type(storage).__name__}")
        return FrozenState(storage.state_dict(), self.allow_pickle)

    def read(self, storage: Any, source: Checkpoint, prefix: str, described: dict[str, Any]) -> Apply:
        """Reads a state."""
        state = read_tree(source, f"{prefix}{STATE}", self.allow_pickle)
        return lambda: storage.load_state_dict(state)


class FrozenState(Frozen):
    """A state."""

    def __init__(self, state: dict[str, Any], allow_pickle: bool) -> None:
        self._state = state
        self._allow_pickle = allow_pickle

    def write(self, draft: Draft, prefix: str, meter: LockMeter) -> dict[str, Any]:
        """Writes it."""
        write_tree(draft, f"{prefix}{STATE}", self._state, self._allow_pickle)
        return {}
