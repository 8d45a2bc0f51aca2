"""Ring writers: the next record goes to the next slot, the oldest makes room."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from replay_service.buffer.index import Index, as_slots
from replay_service.buffer.storages.base import Storage
from replay_service.buffer.writers.base import Writer, first_coordinate

__all__ = ["RoundRobinWriter", "TensorDictRoundRobinWriter"]


class RoundRobinWriter(Writer):
    """Writes around the ring.

    Args:
        compilable: accepted for drop-in use.
        track_generations: stamp every write, so that samples carry `index_generation` and late writes can be checked.
    """

    def __init__(self, compilable: bool = False, *, track_generations: bool = False) -> None:
        super().__init__(compilable)
        self._cursor = 0
        self._track_generations = track_generations

    def register_storage(self, storage: Storage) -> None:
        """Makes `storage` the one this writer writes to; goes on behind what it holds already."""
        super().register_storage(storage)
        self._cursor = storage.filled % storage.slots
        if self._track_generations:
            storage.track_generations()

    @property
    def cursor(self) -> int:
        """The slot that is written next."""
        return self._cursor

    @property
    def tracks_generations(self) -> bool:
        """Whether every write is stamped."""
        return self._track_generations

    def generations_of(self, index: Index) -> Tensor:
        """Stamps int64 of the slots `index`; -1 where there is none."""
        generations = self.storage.generations
        if not self._track_generations or generations is None:
            return super().generations_of(index)
        return generations.of(first_coordinate(index))

    def add(self, data: Any) -> int | Tensor:
        """Writes one record and returns its slot."""
        written = self.extend(self.storage.prepare_one(data))
        return int(written[0]) if self.storage.ndim == 1 else written

    def extend(self, data: Any) -> Tensor:
        """Writes a batch and returns the slot of every record; of more records than slots, the last ones stay."""
        storage = self.storage
        batch = storage.prepare(data)
        records = len(batch)
        if records == 0:
            return torch.zeros((0,) if storage.ndim == 1 else (0, storage.ndim), dtype=torch.int64, device="cpu")
        start = self._cursor
        lanes = self._lanes_of(batch)
        count, slots = records // lanes, -(-storage.max_size // lanes)
        skipped = max(0, count - slots)
        first = (start + skipped) % slots
        kept = count - skipped
        until_end = min(kept, slots - first)
        head = batch if skipped == 0 and until_end == count else batch[skipped * lanes : (skipped + until_end) * lanes]
        if kept > until_end:  # first what goes to the start of the ring, so that an empty one is filled without a gap
            storage.set(range(kept - until_end), batch[(skipped + until_end) * lanes :])
        storage.set(range(first, first + until_end), head)
        self._stamp(start, count, slots)
        self._cursor = (start + count) % slots
        self._write_count += records
        return self._written(start, count, slots)

    def write_at(self, index: Index, data: Any) -> Tensor:
        """Overwrites the filled slots `index` with new records; each write is stamped and counted, the cursor stays."""
        storage = self.storage
        slots = as_slots(index, storage.filled)
        storage.set(slots, data, set_cursor=False)
        if self._track_generations:
            storage.track_generations().advance(slots)
        self._write_count += slots.numel() * storage.lanes
        return slots

    def empty(self, empty_write_count: bool = True) -> None:
        """Starts over at slot 0."""
        super().empty(empty_write_count)
        self._cursor = 0

    def state_dict(self) -> dict[str, Any]:
        """Cursor and write count; the stamps are the storage's."""
        return {"cursor": self._cursor, "write_count": self._write_count, "track_generations": self._track_generations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes cursor and write count over; whether stamps are kept stays this writer's own setting."""
        cursor, write_count = int(state_dict["cursor"]), int(state_dict["write_count"])
        self._cursor = cursor % self.storage.slots  # a state of a larger ring
        self._write_count = write_count

    def _lanes_of(self, batch: Any) -> int:
        # The first batch fixes the lanes, so they are known only once the storage prepared it.
        return self.storage.lanes_of(batch)

    def _stamp(self, start: int, count: int, slots: int) -> None:
        if not self._track_generations:
            return
        generations = self.storage.track_generations()
        rounds, rest = divmod(count, slots)
        if rounds:
            generations.advance_range(0, slots, rounds)
        end = start + rest
        generations.advance_range(start, min(end, slots))
        if end > slots:
            generations.advance_range(0, end - slots)

    def _written(self, start: int, count: int, slots: int) -> Tensor:
        written = torch.arange(start, start + count, device="cpu")
        if start + count > slots:
            written %= slots
        return written if self.storage.ndim == 1 else self.storage.all_cells(written)


class TensorDictRoundRobinWriter(RoundRobinWriter):
    """The ring writer of TensorDict buffers; `index` comes back with every sample and needs no column of its own."""
