"""The samplers of several buffers: which buffers a batch is drawn from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from replay_service.buffer.counts import positive_integer
from replay_service.buffer.ensemble.loading import load_each, states_of
from replay_service.buffer.ensemble.members import groups_of
from replay_service.buffer.samplers.base import Sampler
from replay_service.buffer.storages.base import Storage
from replay_service.buffer.storages.ensemble import StorageEnsemble
from replay_service.errors import EmptyBufferError

__all__ = ["SAMPLEABLE", "SamplerEnsemble"]

SAMPLEABLE = "sampleable"


class SamplerEnsemble(Sampler):
    """Draws a batch in equal parts from some of several storages.

    Each part comes from one storage, drawn with replacement; within it that storage's own sampler draws.

    Args:
        *samplers: the samplers, in the order of the storages.
        p: how likely each storage is, `[storages]`, in any unit. `"sampleable"`: in proportion to the records that can be drawn. None: all
            alike, and those that hold nothing to draw are passed over.
        sample_from_all: one part from every storage instead.
        num_buffer_sampled: parts of a batch, which must be divisible by it; None for as many as there are storages.

    Raises:
        TypeError: one of them is no sampler, or no number of parts.
        ValueError: there is none; `p` with `sample_from_all`, or not one finite, not negative number per storage; a number out of range.
    """

    def __init__(
        self, *samplers: Sampler, p: Any = None, sample_from_all: bool = False, num_buffer_sampled: int | None = None
    ) -> None:
        if not samplers:
            raise ValueError("samplers must be at least one; got none")
        for place, sampler in enumerate(samplers):
            if not isinstance(sampler, Sampler):
                raise TypeError(f"samplers[{place}] must be a Sampler; got {type(sampler).__name__}")
        if sample_from_all and p is not None:
            raise ValueError(f"p ({p}) must be left out with sample_from_all: every buffer gives a part")
        self.samplers = tuple(samplers)
        self.sample_from_all = bool(sample_from_all)
        self._p: Tensor | str | None = None
        self.p = p
        self._parts: int | None = None
        self.num_buffer_sampled = num_buffer_sampled

    def __len__(self) -> int:
        return len(self.samplers)

    def __getitem__(self, index: int) -> Sampler:
        return self.samplers[index]

    # -- settings ---------------------------------------------------------------------------------------------------

    @property
    def p(self) -> Any:
        """How likely each storage is: float64 `[storages]` of sum 1, `"sampleable"` or None."""
        return self._p

    @p.setter
    def p(self, value: Any) -> None:
        if value is None or (isinstance(value, str) and value == SAMPLEABLE):
            self._p = value
            return
        if isinstance(value, str):
            raise ValueError(f"p ({value!r}) must be {SAMPLEABLE!r}, or one number per buffer")
        weights = torch.as_tensor(value, dtype=torch.float64, device="cpu").detach()
        if weights.shape != (len(self.samplers),):
            raise ValueError(
                f"p ({list(weights.shape)}) must be one number per buffer; got {len(self.samplers)} buffers"
            )
        if not bool(torch.isfinite(weights).all()) or bool((weights < 0).any()) or not float(weights.sum()) > 0:
            raise ValueError(f"p ({weights.tolist()}) must be finite, not negative, and not all zero")
        self._p = weights / weights.sum()

    @property
    def num_buffer_sampled(self) -> int:
        """Parts of a batch."""
        return len(self.samplers) if self.sample_from_all or self._parts is None else self._parts

    @num_buffer_sampled.setter
    def num_buffer_sampled(self, value: int | None) -> None:
        self._parts = None if value is None else positive_integer(value, "num_buffer_sampled")

    @property
    def keeps_priorities(self) -> bool:  # type: ignore[override]
        """Whether one of them keeps priorities."""
        return any(sampler.keeps_priorities for sampler in self.samplers)

    @property
    def default_priority(self) -> float | None:
        """The largest priority that a new record gets in one of them; None if none keeps any."""
        defaults = [sampler.default_priority for sampler in self.samplers]
        return max((value for value in defaults if value is not None), default=None)

    # -- draws ------------------------------------------------------------------------------------------------------

    def allot(self, storage: StorageEnsemble, batch_size: int) -> list[tuple[int, int]]:
        """The parts of the next batch: (number of the storage, records from it).

        Raises:
            ValueError: `batch_size` cannot be divided into parts.
            EmptyBufferError: there is nothing to draw, or not in a storage that is to be drawn from.
        """
        parts = self.num_buffer_sampled
        if batch_size % parts:
            raise ValueError(f"batch_size ({batch_size}) must be divisible by num_buffer_sampled ({parts})")
        rows = batch_size // parts
        if self.sample_from_all:
            self._require_ready(storage, rows, [1.0] * parts)
            return [(member, rows) for member in range(parts)]
        drawn = torch.multinomial(self._weights(storage, rows), parts, replacement=True, generator=storage.generator)
        return [(member, rows) for member in drawn.tolist()]

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draws records: their numbers in the ensemble int64 `[n]`, part after part, and what all samplers drawn from say of them.

        Raises:
            TypeError: `storage` is no ensemble.
            EmptyBufferError, ValueError: as `allot`.
        """
        if not isinstance(storage, StorageEnsemble):
            raise TypeError(f"storage ({type(storage).__name__}) must be a StorageEnsemble for a SamplerEnsemble")
        numbers, infos = [], []
        for member, rows in self.allot(storage, batch_size):
            records, info = self.samplers[member].sample(storage.storages[member], rows)
            numbers.append(storage.joined(member, records))
            infos.append(info)
        common = set.intersection(*(set(info) for info in infos))
        return torch.cat(numbers), {name: torch.cat([info[name] for info in infos]) for name in sorted(common, key=str)}

    def can_sample(self, storage: Storage, batch_size: int) -> bool:
        """Whether `sample` would find something to draw."""
        parts = self.num_buffer_sampled
        if not isinstance(storage, StorageEnsemble) or batch_size % parts:
            return False
        weights = [1.0] * len(self.samplers) if self.sample_from_all else self._p
        if weights is None or isinstance(weights, str):
            return any(self._ready(storage, batch_size // parts))
        try:
            self._require_ready(storage, batch_size // parts, list(weights))
        except EmptyBufferError:
            return False
        return True

    def ready(self, storage: StorageEnsemble, member: int, rows: int) -> bool:
        """Whether a part of `rows` records can be drawn from storage `member`: from what is used up, only as long as there is so much."""
        sampler, part = self.samplers[member], storage.storages[member]
        return sampler.can_sample(part, rows) and not (sampler.consumes and sampler.remaining(part) < rows)

    def remaining(self, storage: Storage) -> int:
        """Number of records of all storages that may still be drawn."""
        parts: tuple[Storage, ...] = getattr(storage, "storages", ())
        return sum(sampler.remaining(part) for sampler, part in zip(self.samplers, parts, strict=True))

    # -- told -------------------------------------------------------------------------------------------------------
    # Of new and changed records each sampler is told by its own buffer, which knows the order of its writes.

    def update_priority(self, index: Tensor, priority: Tensor, *, storage: Storage | None = None) -> None:
        """Sets the priorities of records, by their numbers in the ensemble; without an effect where a sampler keeps none."""
        if not isinstance(storage, StorageEnsemble):
            raise TypeError(f"storage ({type(storage).__name__}) must be a StorageEnsemble for a SamplerEnsemble")
        members, local = storage.split(index)
        for member, rows in groups_of(members):
            self.samplers[member].update_priority(local[rows], priority[rows], storage=storage.storages[member])

    def empty(self) -> None:
        """Forgets all records."""
        for sampler in self.samplers:
            sampler.empty()

    # -- state ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Their states by number."""
        return states_of(self.samplers)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the states over; all or none. Which storages are drawn from stays this sampler's own."""
        load_each(self.samplers, state_dict)

    def dumps(self, path: str | Path) -> None:
        """Writes each state into a folder of its own, `0` on, in the folder `path`."""
        for place, sampler in enumerate(self.samplers):
            sampler.dumps(Path(path) / str(place))

    def loads(self, path: str | Path) -> None:
        """Reads the states that `dumps` wrote."""
        for place, sampler in enumerate(self.samplers):
            sampler.loads(Path(path) / str(place))

    def __repr__(self) -> str:
        names = ", ".join(type(sampler).__name__ for sampler in self.samplers)
        return f"{type(self).__name__}({names}, num_buffer_sampled={self.num_buffer_sampled})"

    # -- inner ------------------------------------------------------------------------------------------------------

    def _ready(self, storage: StorageEnsemble, rows: int) -> list[bool]:
        return [self.ready(storage, member, rows) for member in range(len(self.samplers))]

    def _weights(self, storage: StorageEnsemble, rows: int) -> Tensor:
        """How likely each storage is for the next part, float64 `[storages]`."""
        if isinstance(self._p, Tensor):
            self._require_ready(storage, rows, self._p.tolist())
            return self._p
        weights = torch.tensor(self._ready(storage, rows), dtype=torch.float64, device="cpu")
        if self._p == SAMPLEABLE:
            pairs = zip(self.samplers, storage.storages, strict=True)
            weights *= torch.tensor(
                [sampler.remaining(part) for sampler, part in pairs], dtype=torch.float64, device="cpu"
            )
        if not float(weights.sum()) > 0:
            raise EmptyBufferError(
                "buffers must hold a row that can be drawn; got none in any of them: extend one first"
            )
        return weights

    def _require_ready(self, storage: StorageEnsemble, rows: int, weights: list[float]) -> None:
        for member, weight in enumerate(weights):
            if weight > 0 and not self.ready(storage, member, rows):
                raise EmptyBufferError(
                    f"rbs[{member}] must hold what {rows} rows can be drawn from; it holds {len(storage.storages[member])}: extend it "
                    f"first, or pass p={SAMPLEABLE!r} to pass over buffers that are not ready"
                )
