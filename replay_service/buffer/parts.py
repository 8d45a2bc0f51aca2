"""What a buffer is made of: storage, sampler, writer, the lock around them, and their common state."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from replay_service.buffer.assembly import batch_size_of, make_sampler, make_storage, make_writer
from replay_service.buffer.samplers.base import Sampler
from replay_service.buffer.storages.base import Storage
from replay_service.buffer.writers.base import Writer

__all__ = ["BufferParts"]


class BufferParts:
    """Holds the parts of a buffer, exchanges them, and saves and restores their state.

    Args:
        storage, sampler, writer: instances, classes or factories; None for the defaults.
        batch_size: default size of a sample.
        dim_extend: the dimension of a batch that is time; None for the last one that names records (`storage.ndim - 1`).
        generator: the random generator; None seeds a new one.
        collate_fn: makes a batch of what the storage gave.

    Attributes:
        lock: held by every call that reads or writes records.
    """

    def __init__(
        self,
        storage: Any,
        sampler: Any,
        writer: Any,
        *,
        batch_size: int | None,
        dim_extend: int | None,
        generator: torch.Generator | None,
        collate_fn: Callable[[Any], Any] | None,
    ) -> None:
        self._batch_size = None if batch_size is None else batch_size_of(batch_size)
        self._collate_fn = collate_fn
        self._storage = make_storage(storage)
        self._sampler = make_sampler(sampler)
        self._writer = self._default_writer() if writer is None else make_writer(writer)
        self._given_dim_extend = None if dim_extend is None else _dimension(dim_extend)
        self._adopt_storage(generator or _seeded())
        self._tell_sampler()

    # -- parts ------------------------------------------------------------------------------------------------------

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

    def set_storage(self, storage: Storage, collate_fn: Callable[[Any], Any] | None = None) -> Storage:
        """Exchanges the storage, and `collate_fn` with it; sampler and writer start over on what it holds.

        Returns:
            the previous storage.
        """
        made = make_storage(storage)
        previous, generator = self._storage, self._storage.generator
        with previous.lock, made.lock:
            self._storage, self._collate_fn = made, collate_fn
            self._writer.empty()
            self._adopt_storage(generator or _seeded())
            self._sampler.empty()
            self._tell_sampler()
        return previous

    def set_writer(self, writer: Writer) -> Writer:
        """Exchanges the writer; the new one goes on behind what the storage holds. Returns the previous one."""
        made = make_writer(writer)
        with self.lock:
            previous, self._writer = self._writer, made
            made.register_storage(self._storage)
        return previous

    def set_sampler(self, sampler: Sampler) -> Sampler:
        """Exchanges the sampler; the new one is told of all records. Returns the previous one."""
        made = make_sampler(sampler)
        with self.lock:
            previous, self._sampler = self._sampler, made
            self._tell_sampler()
        return previous

    # -- settings ---------------------------------------------------------------------------------------------------

    @property
    def batch_size(self) -> int | None:
        """Default size of a sample."""
        return self._batch_size

    @property
    def dim_extend(self) -> int:
        """The dimension of a batch that is time: 0, or with lanes the last of those that name records (`[lanes, time]`)."""
        return self._dim_extend

    @dim_extend.setter
    def dim_extend(self, value: int) -> None:
        wanted = _dimension(value)
        with self.lock:
            if wanted != self._dim_extend and self._storage.leaves() is not None:
                raise RuntimeError(
                    f"dim_extend ({wanted}) must be set before the first record; it is {self._dim_extend}"
                )
            self._dim_extend = self._given_dim_extend = wanted

    def set_rng(self, generator: torch.Generator) -> None:
        """Makes `generator` the source of all random numbers of this buffer."""
        if not isinstance(generator, torch.Generator):
            raise TypeError(f"generator must be a torch.Generator; got {type(generator).__name__}")
        self._storage.generator = generator

    def synchronize(self) -> None:
        """Waits for what was submitted; here every call is over when it returns."""

    # -- counts -----------------------------------------------------------------------------------------------------

    @property
    def write_count(self) -> int:
        """Records written so far, overwritten ones included."""
        return self._writer.write_count

    def __len__(self) -> int:
        return len(self._storage)

    def stats(self) -> dict[str, Any]:
        """A snapshot: size, write_count, prefetch_queue_size, initialized, capacity, utilization. Waits for nobody."""
        size, capacity = len(self._storage), self._storage.max_size
        return {
            "size": size,
            "write_count": self.write_count,
            "prefetch_queue_size": 0,
            "initialized": True,
            "capacity": capacity,
            "utilization": size / capacity,
        }

    # -- state ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Copies of everything that the next draws and writes depend on."""
        with self.lock:
            generator = self._storage.generator
            return {
                "storage": self._storage.state_dict(),
                "sampler": self._sampler.state_dict(),
                "writer": self._writer.state_dict(),
                "generator": None if generator is None else generator.get_state(),
                "batch_size": self._batch_size,
            }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a state over, by copy; parts and `batch_size` stay this buffer's own.

        Raises:
            KeyError: a part of the state is missing. Nothing was loaded.
            LayoutError: the saved records do not fit the storage. Nothing was loaded.
        """
        storage, writer, sampler = (state_dict[name] for name in ("storage", "writer", "sampler"))
        with self.lock:
            self._storage.load_state_dict(storage)
            self._writer.load_state_dict(writer)
            self._sampler.load_state_dict(sampler)
            if self._storage.generator is not None and state_dict.get("generator") is not None:
                self._storage.generator.set_state(state_dict["generator"])

    # -- inner ------------------------------------------------------------------------------------------------------

    def mark_update(self, index: Any) -> None:
        """Tells the sampler that records were changed in place."""
        with self.lock:
            self._sampler.mark_update(self._storage.flat_slots(index), storage=self._storage)

    def _default_writer(self) -> Writer:
        return make_writer(None)

    def _adopt_storage(self, generator: torch.Generator) -> None:
        """Connects a storage that is new to this buffer."""
        storage = self._storage
        self.lock: AbstractContextManager[Any] = storage.lock
        self._dim_extend = storage.ndim - 1 if self._given_dim_extend is None else self._given_dim_extend
        self._writer.register_storage(storage)
        storage.attach(self)
        self.set_rng(generator)

    def _tell_sampler(self) -> None:
        if len(self._storage):
            self._sampler.extend(self._all_records())

    def _all_records(self) -> Tensor:
        return torch.arange(len(self._storage))


def _dimension(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"dim_extend ({value!r}) must be an integer")
    if value < 0:
        raise ValueError(f"dim_extend ({value}) must not be negative")
    return value


def _seeded() -> torch.Generator:
    generator = torch.Generator()
    generator.seed()
    return generator
