"""Which parts a buffer cannot be made of, and why."""

from __future__ import annotations

from typing import Protocol

from replay_service.buffer.storages.base import Storage
from replay_service.buffer.writers.base import Writer

__all__ = ["require_compatible"]


class Ordering(Protocol):
    """A sampler or sample unit, as far as order matters to it."""

    @property
    def needs_order(self) -> bool:
        """Whether neighbouring slots must hold steps that came one after the other."""


def require_compatible(writer: Writer, storage: Storage, *readers: Ordering | None) -> None:
    """Checks that the writer can write to the storage, and that samplers and units can read what it makes of it.

    Raises:
        ValueError: they do not go together; nothing was changed.
    """
    writer.check_storage(storage)
    for reader in readers:
        if reader is not None and reader.needs_order and not writer.keeps_order:
            raise ValueError(
                f"writer ({type(writer).__name__}) must write steps in the order they come for {type(reader).__name__}, which reads "
                f"neighbouring slots as one episode: use RoundRobinWriter, or store whole trajectories as records"
            )
