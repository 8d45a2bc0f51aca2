"""Epochs: every record once, then again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from replay_service.buffer.samplers.base import Sampler, require_rows
from replay_service.buffer.storages.base import Storage

__all__ = ["SamplerWithoutReplacement"]


class SamplerWithoutReplacement(Sampler):
    """Goes through the records in epochs: within one, no record is drawn twice.

    An epoch is over the records that were there when it began; records appended meanwhile wait for the next one, so that epochs end
    however fast a collector writes, and none is drawn twice or left out. A record overwritten meanwhile is drawn as what it is then.

    Args:
        drop_last: leave out the last, smaller batch of an epoch instead of drawing it.
        shuffle: a new random order for every epoch; else the order of the storage.
    """

    def __init__(self, drop_last: bool = False, shuffle: bool = True) -> None:
        self.drop_last = drop_last
        self.shuffle = shuffle
        self._order = torch.zeros(0, dtype=torch.int64, device="cpu")
        self._next = 0
        self._ran_out = False

    @property
    def ran_out(self) -> bool:
        """Whether the last draw was the last of an epoch."""
        return self._ran_out

    @ran_out.setter
    def ran_out(self, value: bool) -> None:
        self._ran_out = bool(value)
        if self._ran_out:
            self._next = self._order.numel()

    def can_sample(self, storage: Storage, batch_size: int) -> bool:
        """Whether there is a record; with `drop_last`, a whole batch of them."""
        return len(storage) >= (batch_size if self.drop_last else 1)

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draws the next `batch_size` records of the epoch, or what is left of it: int64 `[n]`, no info.

        Raises:
            EmptyBufferError: there are no records.
            ValueError: `drop_last`, and less records than `batch_size`.
        """
        size = require_rows(storage)
        if self.drop_last and size < batch_size:
            raise ValueError(
                f"batch_size ({batch_size}) must not be above the number of records with drop_last; got {size} records"
            )
        needed = batch_size if self.drop_last else 1
        # An epoch over more records than there are was begun before somebody else emptied the storage.
        if self._order.numel() - self._next < needed or self._order.numel() > size:
            self._order = (
                torch.randperm(size, generator=storage.generator, device="cpu")
                if self.shuffle
                else torch.arange(size, device="cpu")
            )
            self._next = 0
        records = self._order[self._next : self._next + batch_size].clone()
        self._next += records.numel()
        self._ran_out = self._order.numel() - self._next < needed
        return records, {}

    def empty(self) -> None:
        """Forgets the epoch."""
        self._order = torch.zeros(0, dtype=torch.int64, device="cpu")
        self._next = 0
        self._ran_out = False

    def state_dict(self) -> dict[str, Any]:
        """The order of the epoch and how far it got."""
        return {"order": self._order.clone(), "next": self._next, "ran_out": self._ran_out}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes an epoch over, by copy; `drop_last` and `shuffle` stay this sampler's own."""
        order, after, ran_out = (state_dict[name] for name in ("order", "next", "ran_out"))
        self._order = torch.as_tensor(order, dtype=torch.int64, device="cpu").clone()
        self._next, self._ran_out = int(after), bool(ran_out)

    def __repr__(self) -> str:
        left = self._order.numel() - self._next
        return f"{type(self).__name__}(drop_last={self.drop_last}, shuffle={self.shuffle}, left={left})"
