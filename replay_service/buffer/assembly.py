"""Turns what a user passes for a part (nothing, an instance, a class, a factory) into the part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from replay_service.buffer.counts import positive_integer
from replay_service.buffer.samplers.base import Sampler
from replay_service.buffer.samplers.random import RandomSampler
from replay_service.buffer.storages.base import Storage
from replay_service.buffer.storages.list import ListStorage
from replay_service.buffer.units import SampleUnit, Transition
from replay_service.buffer.writers.base import Writer
from replay_service.buffer.writers.round_robin import RoundRobinWriter

__all__ = ["batch_size_of", "make_sample_unit", "make_sampler", "make_storage", "make_writer"]

Part = TypeVar("Part")
DEFAULT_CAPACITY = 1000
LARGEST_BATCH = 1 << 40


def make_storage(given: Any) -> Storage:
    """The storage: a `ListStorage(1000)` for None."""
    return _made("storage", given, Storage, lambda: ListStorage(DEFAULT_CAPACITY))


def make_sampler(given: Any) -> Sampler:
    """The sampler: a `RandomSampler` for None."""
    return _made("sampler", given, Sampler, RandomSampler)


def make_sample_unit(given: Any) -> SampleUnit | None:
    """The sample unit: None for None."""
    return None if given is None else _made("sample_unit", given, SampleUnit, Transition)


def make_writer(given: Any, default: Callable[[], Writer] = RoundRobinWriter) -> Writer:
    """The writer: `default()` for None."""
    return _made("writer", given, Writer, default)


def batch_size_of(value: Any, name: str = "batch_size") -> int:
    """`value` as a batch size.

    Raises:
        TypeError: not an integer.
        ValueError: not positive, or more than memory can hold.
    """
    size = positive_integer(value, name)
    if size > LARGEST_BATCH:
        raise ValueError(f"{name} ({size}) must be at most {LARGEST_BATCH}")
    return size


def _made(name: str, given: Any, kind: type[Part], default: Callable[[], Part]) -> Part:
    if given is None:
        return default()
    part = given if isinstance(given, kind) else given() if callable(given) else given
    if not isinstance(part, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, its class or a factory of one; got {type(part).__name__}")
    return part
