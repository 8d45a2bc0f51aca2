"""Batches made into one: stacked along a new axis, or one behind the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from replay_service.episodic.batch_leaves import Nested, blank_like, has_rows, object_array

__all__ = ["concatenated", "stacked"]

Content = dict[str, Any]
Wrap = Callable[[Content], Nested]


class _Missing:
    """The value of a name that a batch does not have."""


MISSING = _Missing()


def stacked(batches: Iterable[Nested], axis: int, wrap: Wrap, path: str = "") -> Content:
    """Content of the batches put side by side along a new `axis`.

    A name that some of them lack is filled with zeros (None for objects) where `axis` is 0. Along axis 0, leaves of
    different shapes and objects become an object array.

    Raises:
        ValueError: `axis` is not 0 and names or shapes differ.
        TypeError: tensors of different shapes.
    """
    contents = [dict(batch.items()) for batch in batches]
    names = dict.fromkeys(name for content in contents for name in content)
    return {
        name: _stacked_values(path + name, [content.get(name, MISSING) for content in contents], axis, wrap)
        for name in names
    }


def _stacked_values(path: str, values: list[Any], axis: int, wrap: Wrap) -> Any:
    present = [value for value in values if not _is_void(value)]
    if not present:
        return wrap({})
    if axis != 0 and len(present) < len(values):
        raise ValueError(f"{path} must be in every batch where axis ({axis}) is not 0; got some without")
    if all(isinstance(value, Nested) for value in present):
        filled = (value if isinstance(value, Nested) else wrap({}) for value in values)
        return wrap(stacked(filled, axis, wrap, f"{path}."))
    blank = blank_like(present[0]) if len(present) < len(values) else None
    return _stacked_leaves(path, [blank if _is_void(value) else value for value in values], axis)


def _is_void(value: Any) -> bool:
    return value is MISSING or (isinstance(value, Nested) and not value.items())


def _stacked_leaves(path: str, values: list[Any], axis: int) -> Any:
    if all(isinstance(value, Tensor) for value in values):
        if any(value.shape != values[0].shape for value in values):
            raise TypeError(f"{path} must have tensors of one shape; got {[list(value.shape) for value in values]}")
        return torch.stack(values, axis)
    if all(isinstance(value, np.ndarray | np.generic | Tensor) for value in values):
        arrays = [_as_numpy(value) for value in values]
        if all(array.shape == arrays[0].shape for array in arrays):
            return np.stack(arrays, axis)
    if axis != 0:
        raise ValueError(f"{path} must have arrays of one shape where axis ({axis}) is not 0; got others")
    return object_array(
        [value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value for value in values]
    )


def concatenated(batches: Sequence[Nested], wrap: Wrap, path: str = "") -> Content:
    """Content of the batches one behind the other, all with the same names at every level.

    Raises:
        ValueError: names differ, row shapes differ, or a leaf is a scalar.
    """
    contents = [dict(batch.items()) for batch in batches]
    joined: Content = {}
    for content in contents[1:]:
        if content.keys() != contents[0].keys():
            odd = sorted(path + name for name in content.keys() ^ contents[0].keys())
            raise ValueError(f"{', '.join(odd)} must be in every batch that is concatenated; got some without")
    for name in contents[0] if contents else ():
        joined[name] = _concatenated_values(path + name, [content[name] for content in contents], wrap)
    return joined


def _concatenated_values(path: str, values: list[Any], wrap: Wrap) -> Any:
    nested = [value for value in values if isinstance(value, Nested)]
    if nested and len(nested) == len(values):
        return wrap(concatenated(nested, wrap, f"{path}."))
    if all(value is None for value in values):
        return None
    for value in values:
        if not has_rows(value):
            raise ValueError(f"{path} must have rows to be concatenated; got {value!r}")
    try:
        if all(isinstance(value, Tensor) for value in values):
            return torch.cat(values)
        return np.concatenate([_as_numpy(value) for value in values])
    except (RuntimeError, ValueError) as error:
        shapes = [list(value.shape) for value in values]
        raise ValueError(f"{path} must have rows of one shape to be concatenated; got {shapes}") from error


def _as_numpy(value: Any) -> np.ndarray | np.generic:
    array: np.ndarray | np.generic = value.detach().cpu().numpy() if isinstance(value, Tensor) else value
    return array
