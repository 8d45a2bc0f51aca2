"""The top-k writer: of all records that were offered the best ones stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import is_tensor_collection
from torch import Tensor

from replay_service.buffer.index import Index
from replay_service.buffer.storages.base import Batch, Storage
from replay_service.buffer.writers.base import Writer, first_coordinate
from replay_service.buffer.writers.ranks import Ranks
from replay_service.errors import LayoutError, PriorityError, key_name
from replay_service.specs import Key
from replay_service.structure import Rows

__all__ = ["TensorDictMaxValueWriter"]

Floats = NDArray[np.float64]

REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda values: values.sum(1),
    "max": lambda values: values.amax(1),
    "min": lambda values: values.amin(1),
    "mean": lambda values: values.mean(1),
    "median": lambda values: values.median(1).values,
}
REJECTED = -1


class TensorDictMaxValueWriter(Writer):
    """Keeps the records with the largest ranks of all that were offered; of equal ranks those that came first.

    A full storage gives up its worst record for a better one, found in a heap: a write costs the logarithm of the capacity. Each slot is
    written once per call at most. An entry of a stored record that is changed in place changes its rank.

    Args:
        rank_key: the entry that ranks records, `("next", "reward")` by default; nested keys as tuples.
        reduction: what is made of several numbers of one record: `"sum"`, `"max"`, `"min"`, `"mean"` or `"median"` (of two middle ones
            the lower).
        compilable: accepted for drop-in use.
        track_generations: stamp every write, so that samples carry `index_generation` and late writes can be checked.

    Raises:
        TypeError: `rank_key` is no key.
        ValueError: another `reduction`.
    """

    refuses_records = True
    keeps_order = False

    def __init__(
        self,
        rank_key: str | Key | None = None,
        reduction: str = "sum",
        *,
        compilable: bool = False,
        track_generations: bool = False,
    ) -> None:
        super().__init__(compilable)
        self._key = _as_key(("next", "reward") if rank_key is None else rank_key)
        if reduction not in REDUCTIONS:
            raise ValueError(f"reduction ({reduction!r}) must be one of {', '.join(REDUCTIONS)}")
        self._reduction = reduction
        self._track_generations = track_generations
        self._ranks: Ranks | None = None  # made of what the storage holds when it is needed first

    def check_storage(self, storage: Storage) -> None:
        """Refuses storages in which one record cannot make room for another.

        Raises:
            ValueError: the storage has lanes.
        """
        if storage.ndim != 1:
            raise ValueError(
                f"storage (ndim {storage.ndim}) must have one dimension for {type(self).__name__}: records of all lanes share a slot, "
                f"but have ranks of their own; store whole trajectories as records instead"
            )

    def register_storage(self, storage: Storage) -> None:
        """Makes `storage` the one this writer writes to; what it holds already counts as offered.

        Raises:
            ValueError: the storage has lanes.
        """
        super().register_storage(storage)
        self._ranks = None
        if self._track_generations:
            storage.track_generations()

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

    def get_insert_index(self, data: Any) -> int | None:
        """The slot that the record `data` (no leading dimension) would get, or None if it would be rejected; nothing is written.

        Raises:
            LayoutError, PriorityError: as `extend`.
        """
        _, slots = self._plan(self._ranks_of(self.storage.prepare_one(data)))
        return int(slots[0]) if slots.numel() else None

    def add(self, data: Any) -> int | Tensor:
        """Offers one record (no leading dimension): its slot, or -1 if it was rejected.

        Raises:
            LayoutError, PriorityError: as `extend`.
        """
        return int(self.extend(self.storage.prepare_one(data))[0])

    def extend(self, data: Any) -> Tensor:
        """Offers a batch: the slot of every record that stays, int64 `[B]`; -1 for those that were rejected.

        Raises:
            LayoutError: records have no entry `rank_key`, or nothing in it. Nothing was written.
            PriorityError: a rank is NaN. Nothing was written.
        """
        storage = self.storage
        batch = storage.prepare(data)
        written = torch.full((len(batch),), REJECTED, dtype=torch.int64, device="cpu")
        if len(batch) == 0:
            return written
        ranks = self._ranks_of(batch)
        rows, slots = self._plan(ranks)
        count = rows.numel()
        if count == 0:
            return written
        first = int(slots[0])
        grows_only = first == storage.filled and count == int(slots[-1]) - first + 1
        storage.set(
            range(first, first + count) if grows_only else slots,
            batch if count == len(batch) else batch.take(rows),
        )
        if self._track_generations:
            storage.track_generations().advance(slots)
        self._known_ranks().put(slots.tolist(), ranks[rows.numpy()].tolist())
        self._write_count += count
        written[rows] = slots
        return written

    def check_records(self, batch: Batch) -> None:
        """Raises LayoutError or PriorityError if records cannot be ranked."""
        self._ranks_of(batch)

    def mark_update(self, records: Tensor) -> None:
        """Is told of records that were changed in place: they are ranked again."""
        if self._ranks is not None and len(self._ranks) == self.storage.filled:
            changed = torch.unique(records)
            self._ranks.put(changed.tolist(), self._stored_ranks(changed).tolist())

    def empty(self, empty_write_count: bool = True) -> None:
        """Forgets all ranks."""
        super().empty(empty_write_count)
        self._ranks = None

    def state_dict(self) -> dict[str, Any]:
        """The write count; ranks and stamps are the storage's."""
        return {"write_count": self._write_count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the write count over, and ranks anew what the storage holds."""
        self._write_count = int(state_dict["write_count"])
        self._ranks = None

    # -- inner ------------------------------------------------------------------------------------------------------

    def _plan(self, ranks: Floats) -> tuple[Tensor, Tensor]:
        """Which rows of a batch stay, in their order, and the slots they get: int64 `[n]` each, free slots first."""
        known = self._known_ranks()
        free = min(self.storage.slots - self.storage.filled, ranks.size)
        lowest = known.lowest()
        beaten: list[int] = []
        if free == ranks.size:
            chosen = np.arange(ranks.size)
        elif free == 0 and lowest is not None and not ranks.max() > lowest[0]:
            chosen = np.zeros(0, np.int64)
        else:
            best_first = np.argsort(-ranks, kind="stable")
            # A new record that comes later in this order beats none of the new ones before it, only old ones.
            beaten = known.beaten_by(ranks[best_first[free:]].tolist())
            chosen = np.sort(best_first[: free + len(beaten)])
        slots = torch.cat(
            [
                torch.arange(len(known), len(known) + free, device="cpu"),
                torch.tensor(beaten, dtype=torch.int64, device="cpu"),
            ]
        )
        return torch.from_numpy(chosen), slots

    def _known_ranks(self) -> Ranks:
        """The ranks of all stored records; read again if somebody else wrote to the storage."""
        storage = self.storage
        if self._ranks is None or len(self._ranks) != storage.filled:
            everything = torch.arange(storage.filled, device="cpu")
            self._ranks = Ranks(self._stored_ranks(everything) if storage.filled else np.zeros(0))
        return self._ranks

    def _stored_ranks(self, slots: Tensor) -> Floats:
        storage = self.storage
        if storage.columnar:
            column = storage.column(self._key)
            return self._reduced(column[slots.to(column.device)])
        return self._of_records([storage.get(slot) for slot in slots.tolist()])

    def _ranks_of(self, batch: Batch) -> Floats:
        """The ranks of a prepared batch, float64 `[B]`; none of them is NaN."""
        if isinstance(batch, Rows):
            if self._key not in batch.keys:
                raise self._lacking([key_name(key) for key in batch.keys])
            ranks = self._reduced(batch.get(self._key))
        else:
            ranks = self._of_records(batch)
        wrong = np.flatnonzero(np.isnan(ranks))
        if wrong.size:
            raise PriorityError(
                f"{key_name(self._key)} (nan in row {int(wrong[0])}) must be a number to rank records by"
            )
        return ranks

    def _of_records(self, records: Any) -> Floats:
        """The ranks of single records, whose entries may differ in shape."""
        ranks = []
        for record in records:
            if not is_tensor_collection(record):
                raise LayoutError(
                    f"data must be made of TensorDicts to be ranked by {key_name(self._key)}; got {type(record).__name__}"
                )
            value = record.get(self._key, None)
            if not isinstance(value, Tensor):
                raise self._lacking([key_name(key) for key in record.keys(include_nested=True, leaves_only=True)])
            ranks.append(self._reduced(value.unsqueeze(0)))
        return np.concatenate(ranks) if ranks else np.zeros(0)

    def _reduced(self, values: Tensor) -> Floats:
        """One number per record of `values` `[n, …]`."""
        flat = values.detach().reshape(values.shape[0], -1) if values.ndim > 1 else values.detach()[:, None]
        if flat.is_complex() or flat.shape[1] == 0:
            kind = "complex ones" if flat.is_complex() else "none"
            raise LayoutError(f"{key_name(self._key)} must hold at least one real number per record; got {kind}")
        reduced: Floats = REDUCTIONS[self._reduction](flat.to("cpu", torch.float64)).numpy()
        return reduced

    def _lacking(self, found: list[str]) -> LayoutError:
        return LayoutError(
            f"rank_key ({key_name(self._key)}) must be an entry of data; got {found}: name another one as rank_key"
        )


def _as_key(key: Any) -> Key:
    parts = (key,) if isinstance(key, str) else key
    if not isinstance(parts, tuple | list) or not parts or not all(isinstance(part, str) for part in parts):
        raise TypeError(f"rank_key ({key!r}) must be a string or a tuple of strings; got {type(key).__name__}")
    return tuple(parts)
