"""Records that are used up: drawn a given number of times, then gone."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from replay_service.buffer.counts import positive_integer
from replay_service.buffer.samplers.base import Sampler
from replay_service.buffer.storages.base import Storage
from replay_service.errors import EmptyBufferError

__all__ = ["ConsumingSampler"]

Ints = NDArray[np.int64]
NOWHERE = -1


class ConsumingSampler(Sampler):
    """Uniform draws, without replacement within a batch, from the records that were drawn less than `max_sample_count` times.

    A record that was drawn as often is used up: it stays in the storage, but is drawn no more and not counted by `len(buffer)`, and
    its slot is the first that a new record is written to. Draws and writes cost time in proportion to their own size only. For
    storages with one dimension and writers that can write to a given slot.

    Args:
        max_sample_count: how often a record is drawn.

    Raises:
        TypeError, ValueError: `max_sample_count` is not a positive integer.
    """

    consumes = True

    def __init__(self, max_sample_count: int = 1) -> None:
        self._limit = positive_integer(max_sample_count, "max_sample_count")
        self._start_over()

    def _start_over(self) -> None:
        self._counts: Ints = np.zeros(0, np.int64)
        # The first `_count` entries of `_live` are the records that can be drawn, in any order; `_place` says where each one is.
        self._live: Ints = np.zeros(0, np.int64)
        self._place: Ints = np.zeros(0, np.int64)
        self._count = 0
        self._known = 0
        # A slot is in `_freed` once at most, or the list would outgrow the storage: `_is_freed` says so.
        self._freed: deque[int] = deque()
        self._is_freed: NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._ran_out = False

    @property
    def max_sample_count(self) -> int:
        """How often a record is drawn."""
        return self._limit

    @property
    def ran_out(self) -> bool:
        """Whether the last draw used the last record up."""
        return self._ran_out

    @ran_out.setter
    def ran_out(self, value: bool) -> None:
        self._ran_out = bool(value)

    def remaining(self, storage: Storage) -> int:
        """Number of records that are not used up."""
        return self._count

    def can_sample(self, storage: Storage, batch_size: int) -> bool:
        """Whether a record is left."""
        return self._count > 0

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draws `batch_size` different records, or all that are left if they are less: int64 `[n]`, no info.

        Raises:
            EmptyBufferError: every record is used up, or there is none.
        """
        if len(storage) < self._known:
            self._forget_beyond(len(storage))
        if self._count == 0:
            raise EmptyBufferError(
                f"buffer must hold a record that was drawn less than {self._limit} times; got an empty buffer: extend it first"
            )
        records = self._live[_distinct(self._count, min(batch_size, self._count), storage.generator)]
        self._counts[records] += 1
        self._use_up(records[self._counts[records] >= self._limit])
        self._ran_out = self._count == 0
        return torch.from_numpy(records), {}

    def extend(self, index: Tensor) -> None:
        """Is told of new records, int64 `[n]`: they can be drawn, whatever was in their slots."""
        records = np.unique(index.numpy())
        if records.size == 0:
            return
        self._known = max(self._known, int(records[-1]) + 1)
        self._make_room(self._known)
        self._counts[records] = 0
        fresh = records[self._place[records] == NOWHERE]
        self._live[self._count : self._count + fresh.size] = fresh
        self._place[fresh] = np.arange(self._count, self._count + fresh.size)
        self._count += fresh.size
        self._ran_out = False

    def freed(self, limit: int) -> Tensor:
        """Slots whose records are used up, in the order in which that happened: int64 `[n]`, at most `limit`, each handed out once."""
        slots: list[int] = []
        while self._freed and len(slots) < limit:
            slot = self._freed.popleft()
            self._is_freed[slot] = False
            if self._place[slot] == NOWHERE:  # else somebody wrote a new record there without asking
                slots.append(slot)
        return torch.tensor(slots, dtype=torch.int64, device="cpu")

    def empty(self) -> None:
        """Forgets all records."""
        self._start_over()

    def state_dict(self) -> dict[str, Any]:
        """Which records can be drawn, how often they were, and which slots are free, by copy."""
        return {
            "max_sample_count": self._limit,
            "counts": torch.from_numpy(self._counts[: self._known].copy()),
            "live": torch.from_numpy(self._live[: self._count].copy()),
            "freed": torch.tensor(list(self._freed), dtype=torch.int64, device="cpu"),
            "ran_out": self._ran_out,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a state over, by copy; `max_sample_count` comes with it.

        Raises:
            ValueError: `max_sample_count` is not positive, or a record that was not counted. Nothing was loaded.
        """
        limit = positive_integer(state_dict["max_sample_count"], "max_sample_count")
        counts, live, freed = (
            torch.as_tensor(state_dict[name], dtype=torch.int64, device="cpu").clone().numpy()
            for name in ("counts", "live", "freed")
        )
        named = np.concatenate([live, freed])
        if named.size and not 0 <= named.min() <= named.max() < counts.size:
            raise ValueError(f"counts ({counts.size}) must be there for every record; got one named {named.max()}")
        ran_out = bool(state_dict["ran_out"])
        self._start_over()
        self._make_room(counts.size)
        self._limit, self._count, self._known, self._ran_out = limit, live.size, counts.size, ran_out
        self._counts[: counts.size] = counts
        self._live[: live.size] = live
        self._place[live] = np.arange(live.size)
        self._freed.extend(freed.tolist())
        self._is_freed[freed] = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}(max_sample_count={self._limit}, remaining={self._count})"

    # -- inner ------------------------------------------------------------------------------------------------------

    def _use_up(self, records: Ints) -> None:
        self._remove(records)
        fresh = records[~self._is_freed[records]]
        self._is_freed[fresh] = True
        self._freed.extend(fresh.tolist())

    def _remove(self, records: Ints) -> None:
        """Takes different records out of the live ones: those at the end move to the places that become free."""
        left = self._count - records.size
        places = self._place[records]
        self._place[records] = NOWHERE
        tail = self._live[left : self._count]
        moved = tail[self._place[tail] != NOWHERE]
        holes = places[places < left]
        self._live[holes] = moved
        self._place[moved] = holes
        self._count = left

    def _forget_beyond(self, size: int) -> None:
        """Forgets records from `size` on: somebody else, who holds the storage too, emptied it."""
        live = self._live[: self._count]
        self._remove(live[live >= size])
        self._freed = deque(slot for slot in self._freed if slot < size)
        self._is_freed[size:] = False
        self._known = size

    def _make_room(self, records: int) -> None:
        known = self._counts.size
        if records <= known:
            return
        # Doubling: a storage that fills record by record costs a constant time for each.
        more = max(records, 2 * known) - known
        self._counts = np.concatenate([self._counts, np.zeros(more, np.int64)])
        self._live = np.concatenate([self._live, np.zeros(more, np.int64)])
        self._place = np.concatenate([self._place, np.full(more, NOWHERE, np.int64)])
        self._is_freed = np.concatenate([self._is_freed, np.zeros(more, np.bool_)])


def _distinct(size: int, count: int, generator: torch.Generator | None) -> Ints:
    """`count` different numbers below `size`, uniformly, in random order, in time proportional to `count`."""
    if 2 * count >= size:
        return torch.randperm(size, generator=generator, device="cpu")[:count].numpy()
    drawn: Ints = np.zeros(0, np.int64)
    while drawn.size < count:
        # The first `count` different ones of independent draws: at most half of all numbers are taken, so few rounds are enough.
        more = torch.randint(0, size, (2 * (count - drawn.size) + 8,), generator=generator, device="cpu").numpy()
        drawn = np.concatenate([drawn, more])
        drawn = drawn[np.sort(np.unique(drawn, return_index=True)[1])]
    return drawn[:count]
