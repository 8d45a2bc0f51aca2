"""A file of recorded steps: so many rows, of which any slice can be read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

from tensordict import TensorDict

from replay_service.specs import Key

__all__ = ["OfflineFile"]

Self = TypeVar("Self", bound="OfflineFile")


class OfflineFile(ABC):
    """Recorded steps in a file, one trajectory after the other.

    `len(file)` is the number of steps, `file[start:stop]` reads some of them as a TensorDict::

        observation                 [T, *obs], as in the file; nested where it is
        action                      [T, *act], as in the file
        ("next", "observation")     [T, *obs]
        ("next", "reward")          float32 [T, 1]
        ("next", "done")            bool [T, 1]: terminated or truncated
        ("next", "terminated")      bool [T, 1]
        ("next", "truncated")       bool [T, 1]
        ("collector", "traj_ids")   int64 [T]

    It is the layout that collectors write, so that recorded and new steps lie in one buffer and in one batch.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    @abstractmethod
    def __len__(self) -> int:
        """Number of steps."""

    @abstractmethod
    def read(self, start: int, stop: int) -> TensorDict:
        """The steps from `start` to `stop`, both within the file; the caller's own."""

    @abstractmethod
    def keys(self) -> list[Key]:
        """The entries of what is read."""

    @abstractmethod
    def close(self) -> None:
        """Closes the file. Idempotent."""

    def __getitem__(self, part: slice) -> TensorDict:
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise TypeError(f"index ({part!r}) must be a slice of steps, without a step of its own")
        start, stop, _ = part.indices(len(self))
        return self.read(start, max(start, stop))

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}, {len(self)} steps)"
