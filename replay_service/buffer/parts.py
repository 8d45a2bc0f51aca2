"""What a buffer is made of: storage, sampler and writer, connected to each other, and the settings they share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import Tensor

from replay_service.buffer.assembly import make_sampler, make_storage, make_writer
from replay_service.buffer.compatibility import require_compatible
from replay_service.buffer.consumption import require_consumable
from replay_service.buffer.samplers.base import Sampler
from replay_service.buffer.sharing import SharedLock
from replay_service.buffer.storages.base import Storage
from replay_service.buffer.storages.list import stacked
from replay_service.buffer.units import SampleUnit
from replay_service.buffer.writers.base import Writer

__all__ = ["BufferParts"]

Self = TypeVar("Self", bound="BufferParts")


class BufferParts:
    """Connects the parts of a buffer and exchanges them.

    Args:
        storage, sampler, writer: the parts.
        generator: the random generator; None seeds a new one.
        dim_extend: the dimension of a batch that is time; None for the last one that names records (`storage.ndim - 1`).

    Attributes:
        lock: held by every call that reads or writes records; the storage's, so that buffers that share one exclude each other.
    """

    lock: AbstractContextManager[Any]
    _collate_fn: Callable[[Any], Any] | None
    _batch_size: int | None
    _dim_extend: int
    _shared: bool = False
    _sample_unit: SampleUnit | None = None

    def __init__(
        self,
        storage: Storage,
        sampler: Sampler,
        writer: Writer,
        generator: torch.Generator | None,
        dim_extend: int | None,
    ) -> None:
        self._storage = storage
        self._sampler = sampler
        self._writer = writer
        self._given_dim_extend = None if dim_extend is None else _dimension(dim_extend)
        self._adopt_storage(generator)
        self._tell_stored(sampler)

    @property
    def storage(self) -> Storage:
        """The storage."""
        return self._storage

    @property
    def sampler(self) -> Sampler:
        """The sampler."""
        return self._sampler

    @property
    def writer(self) -> Writer:
        """The writer."""
        return self._writer

    @property
    def batch_size(self) -> int | None:
        """Default size of a sample."""
        return self._batch_size

    @property
    def write_count(self) -> int:
        """Records written so far, overwritten ones included."""
        self._catch_up()
        return self._writer.write_count

    def __len__(self) -> int:
        self._catch_up()
        return self._sampler.remaining(self._storage)

    # -- exchanging parts -------------------------------------------------------------------------------------------

    def set_storage(self, storage: Storage, collate_fn: Callable[[Any], Any] | None = None) -> Storage:
        """Exchanges the storage, and `collate_fn` with it; sampler and writer start over on what the new one holds.

        Returns:
            the previous storage.

        Raises:
            RuntimeError: the buffer is shared with other processes.
            ValueError, TypeError: the parts do not go together. Nothing was exchanged.
        """
        self._require_own("set_storage")
        made, previous = make_storage(storage), self._storage
        require_compatible(self._writer, made)
        require_consumable(self._sampler, made, self._writer)
        with previous.lock, made.lock:
            previous.detach(self)
            self._storage, self._collate_fn = made, collate_fn
            self._writer.empty()
            self._adopt_storage(previous.generator)
            self.tell_emptied()
            self._tell_stored(self._sampler, self._sample_unit)
        return previous

    def set_writer(self, writer: Writer) -> Writer:
        """Exchanges the writer; the new one goes on behind what the storage holds. Returns the previous one.

        Raises:
            RuntimeError: the buffer is shared with other processes.
            ValueError, TypeError: the parts do not go together. Nothing was exchanged.
        """
        self._require_own("set_writer")
        made = make_writer(writer)
        require_compatible(made, self._storage, self._sampler, self._sample_unit)
        require_consumable(self._sampler, self._storage, made)
        with self.lock:
            previous, self._writer = self._writer, made
            made.register_storage(self._storage)
        return previous

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Exchanges the sampler; the new one is told of all records. Returns the previous one.

        Raises:
            ValueError, TypeError: the parts do not go together. Nothing was exchanged.
        """
        made = make_sampler(sampler)
        require_compatible(self._writer, self._storage, made)
        require_consumable(made, self._storage, self._writer, shared=self._shared, sample_unit=self._sample_unit)
        with self.lock:
            previous, self._sampler = self._sampler, made
            self._tell_stored(made)
        return previous

    # -- settings ---------------------------------------------------------------------------------------------------

    @property
    def dim_extend(self) -> int:
        """The dimension of a batch that is time: 0, or with lanes the last of those that name records (`[lanes, time]`)."""
        return self._dim_extend

    @dim_extend.setter
    def dim_extend(self, value: int) -> None:
        wanted = _dimension(value)
        with self.lock:
            if wanted != self._dim_extend and len(self._storage):
                raise RuntimeError(
                    f"dim_extend ({wanted}) must be set before the first record; got a buffer that has some"
                )
            self._dim_extend = self._given_dim_extend = wanted

    def share(self: Self, shared: bool = True) -> Self:
        """Lets processes of this machine share the buffer: those forked from this one, and those it is handed to when they start.

        Records, stamps and counters are one for all; what a sampler keeps is each process's own. Extend the buffer once before
        processes part, so that all of them know the layout. Returns the buffer.

        Raises:
            TypeError: the storage has no columns in this machine's memory, or the writer goes around no ring.
            ValueError: another buffer holds the same storage.
            RuntimeError: `shared` is False and the buffer is shared already.
        """
        if not shared:
            if self._shared:
                raise RuntimeError("shared (False) must not take back what other processes may hold; make a new buffer")
            return self
        require_consumable(self._sampler, self._storage, self._writer, shared=True)
        with self.lock:
            if not self._shared:
                if self._storage.attached > 1:
                    raise ValueError(
                        f"storage must belong to one buffer to be shared; {self._storage.attached} hold it"
                    )
                lock = SharedLock(self)
                self._storage.share()
                self.lock = self._storage.lock = lock
                self._shared = True
        return self

    def set_rng(self, generator: torch.Generator) -> None:
        """Makes `generator` the source of all random numbers of this buffer.

        Raises:
            TypeError: it is no `torch.Generator`.
        """
        if not isinstance(generator, torch.Generator):
            raise TypeError(f"generator must be a torch.Generator; got {type(generator).__name__}")
        self._storage.generator = generator

    # -- telling --------------------------------------------------------------------------------------------------

    def tell_written(self, records: Tensor) -> None:
        """Tells sampler and sample unit of new records, flat numbers int64 `[n]` in the order they were written."""
        self._sampler.extend(records)
        if self._sample_unit is not None:
            self._sample_unit.extend(records)

    def tell_changed(self, records: Tensor) -> None:
        """Tells them of records that were changed in place, and the writer, too."""
        self._writer.mark_update(records)
        self._sampler.mark_update(records, storage=self._storage)
        if self._sample_unit is not None:
            self._sample_unit.mark_update(records, storage=self._storage)

    def tell_emptied(self) -> None:
        """Tells them that there are no records any more."""
        self._sampler.empty()
        if self._sample_unit is not None:
            self._sample_unit.empty()

    # -- inner ------------------------------------------------------------------------------------------------------

    def _collated(self, records: Any) -> Any:
        """A batch of what the storage gave: columns as they are and lists stacked, unless there is a `collate_fn`."""
        if self._collate_fn is not None:
            return self._collate_fn(records)
        return records if self._storage.columnar else stacked(records)

    def mark_update(self, index: Any) -> None:
        """Tells sampler and sample unit that records were changed in place (default priorities again, moved episode ends)."""
        with self.lock:
            self.tell_changed(self._storage.flat_slots(index))

    def _catch_up(self) -> None:
        """Learns what other processes wrote; without them, counts are read without waiting for a call that runs."""
        if self._shared:
            with self.lock:
                pass

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.lock = self._storage.lock
        self._storage.attach(self)

    def _adopt_storage(self, generator: torch.Generator | None) -> None:
        """Connects a storage that is new to this buffer."""
        storage = self._storage
        self.lock = storage.lock
        self._dim_extend = storage.ndim - 1 if self._given_dim_extend is None else self._given_dim_extend
        self._writer.register_storage(storage)
        storage.attach(self)
        self.set_rng(_seeded() if generator is None else generator)

    def _require_own(self, call: str) -> None:
        if self._shared:
            raise RuntimeError(f"{call} must come before share: other processes may hold the buffer as it is")

    def _tell_stored(self, *parts: Sampler | SampleUnit | None) -> None:
        """Announces to new parts what the storage holds already."""
        if len(self._storage):
            records = self._records_in_order()
            for part in parts:
                if part is not None:
                    part.extend(records)

    def _records_in_order(self) -> Tensor:
        """All records, flat numbers int64 `[n]`, in the order they were written as far as the writer can tell."""
        storage = self._storage
        records = torch.arange(len(storage), device="cpu")
        # Only a writer that goes around a ring has a cursor; in a full ring it stands at the oldest slot.
        cursor: int = getattr(self._writer, "cursor", 0) if storage.filled == storage.slots else 0
        return records if cursor == 0 else records.roll(-cursor * storage.lanes)


def _dimension(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"dim_extend ({value!r}) must be an integer; got {type(value).__name__}")
    if value < 0:
        raise ValueError(f"dim_extend ({value}) must not be negative")
    return value


def _seeded() -> torch.Generator:
    generator = torch.Generator()
    generator.seed()
    return generator
