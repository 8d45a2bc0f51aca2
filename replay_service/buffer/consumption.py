"""Buffers whose records are used up: what they can be made of, and where they write."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from replay_service.buffer.assembly import make_sampler
from replay_service.buffer.counts import positive_integer
from replay_service.buffer.samplers.base import Sampler
from replay_service.buffer.samplers.consuming import ConsumingSampler
from replay_service.buffer.samplers.random import RandomSampler
from replay_service.buffer.storages.base import Batch, Storage
from replay_service.buffer.writers.base import Writer

__all__ = ["consuming_sampler", "require_consumable", "write_into_freed"]


@runtime_checkable
class Placing(Protocol):
    """A ring writer that can write to given slots, too."""

    @property
    def cursor(self) -> int:
        """The slot that is written next."""

    def write_at(self, index: Tensor, data: Any) -> Tensor:
        """Overwrites the filled slots `index`."""


def consuming_sampler(given: Any, times: int | None) -> Sampler:
    """The sampler of a buffer with `consume_after_n_samples=times`: the given one, or for None and uniform draws one that consumes.

    Raises:
        TypeError: `times` is no integer.
        ValueError: `times` is not positive, or the given sampler cannot consume, or does after another number of draws.
    """
    sampler = make_sampler(given)
    if times is None:
        return sampler
    limit = positive_integer(times, "consume_after_n_samples")
    if type(sampler) is RandomSampler:
        return ConsumingSampler(limit)
    if not isinstance(sampler, ConsumingSampler):
        raise ValueError(
            f"consume_after_n_samples ({limit}) must go with uniform draws; got {type(sampler).__name__}: leave the sampler out"
        )
    if sampler.max_sample_count != limit:
        raise ValueError(
            f"consume_after_n_samples ({limit}) must be the sampler's max_sample_count; got {sampler.max_sample_count}"
        )
    return sampler


def require_consumable(sampler: Sampler, storage: Storage, writer: Writer, **settings: Any) -> None:
    """Checks that records can be used up in such a buffer, if its sampler does that.

    Args:
        sampler, storage, writer: the parts.
        **settings: of the buffer; none of them may be set.

    Raises:
        ValueError: the storage has lanes, or a setting does not go with it.
        TypeError: the writer cannot write to given slots.
    """
    if not sampler.consumes:
        return
    if storage.ndim != 1:
        raise ValueError(f"storage (ndim {storage.ndim}) must have one dimension for records to be used up")
    if not isinstance(writer, Placing):
        raise TypeError(
            f"writer ({type(writer).__name__}) must be able to write to freed slots for records to be used up; use RoundRobinWriter"
        )
    for name, value in settings.items():
        if value:
            raise ValueError(f"{name} ({value!r}) must be left out where records are used up: it does not know of it")


def write_into_freed(sampler: Sampler, writer: Writer, batch: Batch) -> Tensor:
    """Writes prepared records to slots whose records are used up, oldest first, and the rest where the writer goes on.

    Returns:
        the slot of every record, int64 `[B]`; all different, unless there are more records than slots.
    """
    freed = sampler.freed(len(batch))
    if freed.numel() == 0 or not isinstance(writer, Placing) or len(batch) >= writer.storage.slots:
        return writer.extend(batch)
    if freed.numel() == len(batch):
        return writer.write_at(freed, batch)
    # The rest takes freed slots that lie on its way, too: it must not overwrite what the same call wrote to them.
    slots = writer.storage.slots
    ahead = (freed - writer.cursor) % slots
    rest = len(batch) - freed.numel()
    for distance in sorted(ahead.tolist()):
        rest += distance < rest
    aside = freed[ahead >= rest]
    written = writer.extend(batch[aside.numel() :])
    return torch.cat([writer.write_at(aside, batch[: aside.numel()]), written]) if aside.numel() else written
