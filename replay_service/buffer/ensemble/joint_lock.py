"""One lock over several storages."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, Protocol

__all__ = ["JointLock"]


class Locked(Protocol):
    """Something that is locked while it is read or written."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Its lock."""


class JointLock(AbstractContextManager["JointLock"]):
    """Holds the locks of several storages at once.

    They are taken in one order, whoever asks, so that two ensembles of the same storages never wait for each other. A storage's lock is
    exchanged when the storage is shared between processes, and only by who holds it: so it is the same on the way out as on the way in.

    Args:
        parts: the storages.
    """

    def __init__(self, parts: Sequence[Locked]) -> None:
        self._parts = tuple(parts)

    def __enter__(self) -> JointLock:
        with ExitStack() as taken:
            for part in self._ordered():
                taken.enter_context(part.lock)
            taken.pop_all()  # all of them: now they are held until `__exit__`
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for part in reversed(self._ordered()):
            part.lock.__exit__(kind, error, trace)

    def _ordered(self) -> list[Locked]:
        # Not kept: a copy in another process has other ids.
        return sorted(self._parts, key=id)
