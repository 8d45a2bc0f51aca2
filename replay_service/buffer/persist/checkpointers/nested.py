"""The checkpointer of episodes as nested tensors."""

from __future__ import annotations

from collections.abc import Sequence

from replay_service.buffer.persist.checkpointers.flat import naming
from replay_service.buffer.persist.checkpointers.tensor import TensorStorageCheckpointer
from replay_service.buffer.persist.nested_ted import Nested2TED, TED2Nested
from replay_service.specs import Key

__all__ = ["NestedStorageCheckpointer"]


class NestedStorageCheckpointer(TensorStorageCheckpointer):
    """Saves steps of episodes with every observation once, an episode per row; see `TED2Nested`. Every save writes everything.

    Args:
        done_keys, reward_keys: as `TED2Flat`; None takes its defaults.
    """

    layout = "nested"

    def __init__(
        self, done_keys: Sequence[str | Key] | None = None, reward_keys: Sequence[str | Key] | None = None
    ) -> None:
        super().__init__()
        names = naming(done_keys, reward_keys)
        self.save_hooks.append(TED2Nested(**names))
        self.load_hooks.append(Nested2TED(**names))
