"""Arithmetic on all leaves of a batch at once. Leaves keep their dtypes; None and empty nested batches stay what they are."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor

from replay_service.episodic.batch_leaves import Nested
from replay_service.episodic.refusals import RefusedTypeError

__all__ = ["combined", "overwrite"]

Content = dict[str, Any]
Operator = Callable[[Any, Any], Any]


def combined(batch: Nested, operate: Operator, other: Any, sign: str, path: str = "") -> Content:
    """`operate(leaf, other)` of every leaf, or of the leaves of two batches with the same names where the sign is a plus.

    Raises:
        TypeError: `other` is neither a number nor, for a plus, a batch (then also an AssertionError); a leaf is no array
            of numbers; or the result does not fit the dtype of the leaf.
        ValueError: the names of the two batches differ.
    """
    if isinstance(other, Nested):
        if "+" not in sign:
            raise RefusedTypeError(f"operand of {sign} must be a number; got a batch")
        others = dict(other.items())
        if others.keys() != dict(batch.items()).keys():
            raise ValueError(f"operand of {sign} must have the names {[path + name for name, _ in batch.items()]}")
    elif isinstance(other, Number | np.number) or (isinstance(other, Tensor | np.ndarray) and other.ndim == 0):
        others = {}
    else:
        raise RefusedTypeError(f"operand of {sign} must be a number or a batch; got {type(other).__name__}")
    content: Content = {}
    for name, leaf in batch.items():
        operand = others.get(name, other) if isinstance(other, Nested) else other
        if isinstance(leaf, Nested):
            content[name] = leaf.wrap(combined(leaf, operate, operand, sign, f"{path}{name}."))
        else:
            content[name] = None if leaf is None else _result(path + name, leaf, operate, operand, sign)
    return content


def _result(name: str, leaf: Any, operate: Operator, operand: Any, sign: str) -> Any:
    if not isinstance(leaf, np.ndarray | np.generic | Tensor):
        raise TypeError(f"{name} ({leaf!r}) must be an array for {sign}; got {type(leaf).__name__}")
    try:
        result = operate(leaf, operand)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} must hold numbers that go with the operand of {sign}; {error}") from error
    if isinstance(leaf, Tensor):
        fits = torch.can_cast(result.dtype, leaf.dtype)
        result = result.to(leaf.dtype) if fits else result
    else:
        fits = np.can_cast(result.dtype, leaf.dtype, "same_kind")
        result = result.astype(leaf.dtype, copy=False) if fits else result
    if not fits or result.shape != leaf.shape:
        raise TypeError(
            f"{name} ({leaf.dtype} {list(leaf.shape)}) must hold the result of {sign}; it is {result.dtype} {list(result.shape)}"
        )
    return result


def overwrite(batch: Nested, results: Content) -> Content:
    """Write `results` of `combined` into the leaves they came from, so that all who share the memory see it.

    Gives the content afterwards: the same arrays and tensors, and new scalars.
    """
    content: Content = {}
    for name, leaf in batch.items():
        result = results[name]
        if isinstance(leaf, Nested):
            content[name] = leaf.wrap(overwrite(leaf, dict(result.items())))
        elif isinstance(leaf, np.ndarray | Tensor):
            leaf[...] = result
            content[name] = leaf
        else:
            content[name] = result
    return content
