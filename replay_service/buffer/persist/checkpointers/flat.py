"""The checkpointer of steps in the flat form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from replay_service.buffer.persist.checkpointers.tensor import TensorStorageCheckpointer
from replay_service.buffer.persist.ted import Flat2TED, TED2Flat
from replay_service.specs import Key

__all__ = ["FlatStorageCheckpointer", "naming"]


class FlatStorageCheckpointer(TensorStorageCheckpointer):
    """Saves steps of episodes with every observation once; see `TED2Flat`. Every save writes everything.

    Args:
        done_keys, reward_keys: as `TED2Flat`; None takes its defaults.
    """

    layout = "flat"

    def __init__(
        self, done_keys: Sequence[str | Key] | None = None, reward_keys: Sequence[str | Key] | None = None
    ) -> None:
        super().__init__()
        names = naming(done_keys, reward_keys)
        self.save_hooks.append(TED2Flat(**names))
        self.load_hooks.append(Flat2TED(**names))


def naming(done_keys: Sequence[str | Key] | None, reward_keys: Sequence[str | Key] | None) -> dict[str, Any]:
    """The arguments of converters that were given."""
    given = {"done_keys": done_keys, "reward_keys": reward_keys}
    return {name: value for name, value in given.items() if value is not None}
