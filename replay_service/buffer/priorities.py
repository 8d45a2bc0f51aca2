"""Priorities as users pass them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from replay_service.arguments import numbers_of
from replay_service.errors import PriorityError

__all__ = ["REDUCTIONS", "checked_priorities"]

REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda values: values.amax(1),
    "min": lambda values: values.amin(1),
    "mean": lambda values: values.mean(1),
    "median": lambda values: values.median(1).values,
}
"""How several priorities of one record, `[n, k]`, become one, `[n]`; the median of an even number is the lower of the middle two."""


def checked_priorities(priority: Any, count: int, reduction: str = "max") -> Tensor:
    """One priority per record.

    Args:
        priority: one number, `count` of them in any shape, or several per record, `[count, …]`.
        count: number of records.
        reduction: what is made of several, a key of `REDUCTIONS`.

    Returns:
        float64 `[count]`.

    Raises:
        PriorityError: a priority, also one of several, is NaN, infinite or negative.
        TypeError: no numbers.
        ValueError: another number of entries.
    """
    values = numbers_of("priority", priority, torch.float64).to("cpu", torch.float64)
    entries = values.numel()
    if entries not in (1, count) and not (values.ndim > 1 and values.shape[0] == count):
        raise ValueError(f"priority ({entries} entries) must be a scalar or have one entry per index; got {count}")
    # NumPy: on a batch the calls themselves cost more than what they compute, and torch's cost three times as much.
    array = values.numpy()
    if entries and not (array.min() >= 0.0 and array.max() < np.inf):  # a NaN fails both
        wrong = array[~((array >= 0.0) & (array < np.inf))].reshape(-1)[0]
        raise PriorityError(f"priority ({float(wrong)}) must be finite and not negative")
    if entries == count:
        return values.reshape(-1)
    if entries == 1:
        return values.reshape(1).expand(count)
    return REDUCTIONS[reduction](values.reshape(count, -1))
