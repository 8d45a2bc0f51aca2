"""Rows of a batch: how many, which, and writing to them, at any depth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from replay_service.episodic.batch_leaves import Nested, blanked, fitted, has_rows, taken, torch_index

__all__ = ["assignments", "lengths", "random_order", "rows_at"]

Content = dict[str, Any]


def lengths(batch: Nested, path: str = "") -> Iterator[int]:
    """Rows of every leaf; None and empty nested batches have none and don't count.

    Raises:
        TypeError: a leaf without rows.
    """
    for name, value in batch.items():
        if isinstance(value, Nested):
            yield from lengths(value, f"{path}{name}.")
        elif has_rows(value):
            yield len(value)
        elif value is not None:
            raise TypeError(f"{path}{name} ({value!r}) must have rows for the batch to have a length; it has none")


def rows_at(batch: Nested, index: Any, path: str = "") -> Content:
    """Every leaf at `index`, views where there can be; None and empty nested batches stay.

    Raises:
        IndexError: outside a leaf, or a leaf without rows.
    """
    return {
        name: value.wrap(rows_at(value, index, f"{path}{name}."))
        if isinstance(value, Nested)
        else taken(path + name, value, index)
        for name, value in batch.items()
    }


def assignments(batch: Nested, index: Any, source: Nested, path: str = "") -> Iterator[tuple[Any, Any, Any]]:
    """What to do so that the rows of `batch` at `index` become `source`: (leaf, index for it, value that fits) each.

    Names that `source` lacks are reset to 0, or None for objects.

    Raises:
        ValueError: `source` has other names, or a value that doesn't fit.
        IndexError: outside a leaf.
    """
    given = dict(source.items())
    own = dict(batch.items())
    if unknown := [path + name for name in given if name not in own]:
        raise ValueError(f"{', '.join(unknown)} must be one of {[path + name for name in own]} to be set at an index")
    for name, leaf in own.items():
        place = path + name
        if isinstance(leaf, Nested):
            inner = given.get(name, leaf.wrap({}))
            if not isinstance(inner, Nested):
                raise ValueError(f"{place} must be set to a batch; got {type(inner).__name__}")
            yield from assignments(leaf, index, inner, f"{place}.")
            continue
        if name not in given and not has_rows(leaf):
            continue
        if leaf is None and given[name] is None:
            continue
        where = index if isinstance(leaf, np.ndarray) else torch_index(index, leaf)
        yield leaf, where, fitted(place, leaf, index, given.get(name, blanked(leaf)))


def random_order(length: int, generator: torch.Generator | None) -> np.ndarray:
    """The numbers below `length`, int64, in random order; without a generator from one that is seeded anew."""
    if generator is None:
        generator = torch.Generator()
        generator.seed()
    return torch.randperm(length, generator=generator, device="cpu").numpy()
