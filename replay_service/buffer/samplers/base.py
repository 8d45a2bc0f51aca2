"""The sampler interface: which records a batch is made of."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from replay_service.buffer.storages.base import Storage
from replay_service.errors import EmptyBufferError

__all__ = ["Sampler"]


class Sampler(ABC):
    """Base of all samplers.

    The buffer calls a sampler under its lock. Records are named by flat record numbers, int64 `[n]`, also in storages with lanes
    (`slot * lanes + lane`; `storage.coordinates` turns them into coordinates). Random numbers come from `storage.generator`.
    """

    keeps_priorities: bool = False
    """Whether `update_priority` has an effect."""

    reduction: str = "max"
    """What is made of several priorities of one record: `"max"`, `"min"`, `"mean"` or `"median"`."""

    needs_order: bool = False
    """Whether neighbouring slots must hold steps that came one after the other."""

    consumes: bool = False
    """Whether records are used up by draws, so that `remaining` and `freed` say more than the storage does."""

    @abstractmethod
    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draws `batch_size` records: their numbers int64 `[n]` and an info dictionary whose tensors are aligned with them.

        Raises:
            EmptyBufferError: nothing can be drawn.
        """

    def can_sample(self, storage: Storage, batch_size: int) -> bool:
        """Whether `sample` would find something to draw."""
        return len(storage) > 0

    def add(self, index: int) -> None:
        """Is told of one new record."""
        self.extend(torch.tensor([index], device="cpu"))

    def extend(self, index: Tensor) -> None:  # noqa: B027 - a sampler without state has nothing to do
        """Is told of new records, int64 `[n]` in the order they were written; they are in the storage already."""

    def mark_update(self, index: Tensor, *, storage: Storage | None = None) -> None:  # noqa: B027
        """Is told of records that were changed in place."""

    def update_priority(self, index: Tensor, priority: Tensor, *, storage: Storage | None = None) -> None:  # noqa: B027
        """Sets priorities; without an effect where a sampler keeps none."""

    @property
    def default_priority(self) -> float | None:
        """The priority of new records; None where a sampler keeps none."""
        return None

    def empty(self) -> None:  # noqa: B027
        """Forgets all records."""

    def remaining(self, storage: Storage) -> int:
        """Number of records that may still be drawn."""
        return len(storage)

    def freed(self, limit: int) -> Tensor:
        """Slots whose records are used up, int64 `[n]`, at most `limit`: handed out once, for new records to be written to."""
        return torch.zeros(0, dtype=torch.int64, device="cpu")

    @property
    def ran_out(self) -> bool:
        """Whether an epoch is over; False for samplers without epochs."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """Everything that `load_state_dict` needs, by copy."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:  # noqa: B027
        """Takes a state over, by copy."""

    def settle(self, storage: Storage) -> None:  # noqa: B027
        """Is told that records and state were loaded, before anything else happens to them."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Arrays that come out of shared memory, as from Ray, cannot be written to.
        writable = {name: np.require(a, requirements="W") for name, a in state.items() if isinstance(a, np.ndarray)}
        self.__dict__.update({**state, **writable})

    def dumps(self, path: str | Path) -> None:
        """Writes the state as `sampler.json` into the folder `path`."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "sampler.json").write_text(json.dumps(self.state_dict(), default=_as_list))

    def loads(self, path: str | Path) -> None:
        """Reads the state that `dumps` wrote."""
        self.load_state_dict(json.loads((Path(path) / "sampler.json").read_text()))


def _as_list(value: Any) -> Any:
    """A tensor as what JSON can hold; `load_state_dict` takes it as it takes a tensor."""
    if isinstance(value, Tensor):
        return value.tolist()
    raise TypeError(f"state must be made of numbers, strings and tensors; got {type(value).__name__}")


def require_rows(storage: Storage) -> int:
    """Number of records in `storage`.

    Raises:
        EmptyBufferError: there is none.
    """
    size = len(storage)
    if size == 0:
        raise EmptyBufferError("buffer must hold at least one row before sample; got an empty buffer: extend it first")
    return size
