"""Counts that users pass: capacities, batch sizes, numbers of dimensions."""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["positive_integer"]


def positive_integer(value: Any, name: str) -> int:
    """`value` as a Python integer; NumPy's integers are fine, floats and bools are not.

    Raises:
        TypeError: not an integer.
        ValueError: not positive.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} ({value!r}) must be a positive integer; got {type(value).__name__}") from None
    if isinstance(value, bool):
        raise TypeError(f"{name} ({value!r}) must be a positive integer; got bool")
    if number < 1:
        raise ValueError(f"{name} ({number}) must be a positive integer")
    return number
