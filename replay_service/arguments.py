"""Arguments as users pass them: numbers, indices, flags, names of entries, seconds; checked here, for local buffers and handles alike."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from replay_service.specs import Key

__all__ = ["entry_key", "flag_of", "index_array", "numbers_of", "positive_integer", "positive_seconds", "real_number"]

LONGEST_S = 10 * 365 * 24 * 3600.0
"""What stands for "for ever": clocks and sockets cannot count much further."""

INDEX_RULE = "index must be an integer, a slice, or an array of integers or of flags"
NUMBERS = (int, float, list, tuple, range, np.ndarray, np.generic)


def positive_integer(value: Any, name: str) -> int:
    """`value` as a Python integer; NumPy's integers are fine, floats and bools are not.

    Raises:
        TypeError: not an integer.
        ValueError: not positive.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} ({value!r:.80}) must be a positive integer; got {type(value).__name__}") from None
    if isinstance(value, bool):
        raise TypeError(f"{name} ({value!r}) must be a positive integer; got bool")
    if number < 1:
        raise ValueError(f"{name} ({number}) must be a positive integer")
    return number


def positive_seconds(timeout: Any, default_s: float, name: str = "timeout") -> float:
    """A timeout in seconds, infinity as ten years; `default_s` for None, `ValueError` for what is no positive number."""
    if timeout is None:
        return default_s
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
        raise ValueError(f"{name} ({timeout!r:.80}) must be a positive number of seconds")
    return float(min(timeout, LONGEST_S))


def flag_of(name: str, value: Any) -> bool:
    """`value`, which is True or False (or 1, 0, or NumPy's); `TypeError` for anything else, which would silently count as true."""
    if value is True or value is False:
        return bool(value)
    if isinstance(value, np.bool_) or (type(value) is int and value in (0, 1)):
        return bool(value)
    raise TypeError(f"{name} ({value!r:.80}) must be True or False; got {type(value).__name__}")


def real_number(name: str, value: Any) -> float:
    """`value` as a Python float; `TypeError` for what is no single number, such as a text, a flag or an array."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise TypeError(f"{name} ({value!r:.80}) must be a number; got {type(value).__name__}")
    return float(value)


def entry_key(name: str, value: Any) -> Key:
    """The name of an entry, a string or a sequence of strings for a nested one, as a key; `TypeError` for anything else."""
    parts = value if isinstance(value, list | tuple) else (value,)
    key = tuple(part for inner in parts for part in (inner if isinstance(inner, tuple) else (inner,)))
    if not key or not all(isinstance(part, str) for part in key):
        raise TypeError(
            f"{name} ({value!r:.80}) must be the name of an entry: a string or a tuple of strings; got {type(value).__name__}"
        )
    return key


def numbers_of(name: str, given: Any, dtype: torch.dtype | None = None) -> Tensor:
    """`given` as a tensor of real numbers, without its history; a tensor stays on its device, and everything else becomes one of `dtype`.

    Raises:
        TypeError: something that is no number, nor an array or sequence of numbers.
        ValueError: integers that do not fit 64 bits, or sequences of different lengths.
    """
    if isinstance(given, Tensor):
        _require_memory(name, given)
        if given.is_complex():
            raise TypeError(f"{name} must be real numbers; got {_dtype(given)}")
        return given.detach()
    if not isinstance(given, NUMBERS):
        raise TypeError(f"{name} must be numbers; got {type(given).__name__}")
    array = _array(name, given)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be numbers; got {_kind(array)}")
    # Only arrays bring a width of their own; a Python float becomes what torch makes of it.
    return torch.as_tensor(array if isinstance(given, np.ndarray | np.generic) else given, dtype=dtype, device="cpu")


def index_array(index: Any) -> Tensor:
    """An index that is an integer, or an array or sequence of integers or flags, as an int64 or bool tensor on its own device.

    Raises:
        TypeError: something else.
        IndexError: an integer that does not fit 64 bits.
    """
    if isinstance(index, range):
        index = list(index)
    if isinstance(index, Tensor):
        _require_memory("index", index)
        array = index.detach()
    elif isinstance(index, list | tuple | np.ndarray | int | np.integer) and not isinstance(index, bool):
        items = _array("index", index)
        if items.size == 0 and items.dtype != bool:
            return torch.zeros(items.shape, dtype=torch.int64, device="cpu")
        if items.dtype.kind not in "biufc":
            raise TypeError(f"index must be integers or flags; got {_kind(items)}")
        array = torch.from_numpy(items.astype(np.uint64) if items.dtype == np.ulonglong else items)
    else:
        raise TypeError(f"{INDEX_RULE}; got {type(index).__name__}")
    if array.dtype in (torch.int64, torch.bool):
        return array
    if array.numel() and (array.is_floating_point() or array.is_complex()):
        raise TypeError(f"index must be integers or flags; got {_dtype(array)}")
    slots = array.to(torch.int64)
    if array.dtype == torch.uint64 and bool((slots < 0).any()):
        raise IndexError("index must be integers that fit 64 bits, one of them for the sign")
    return slots


def _array(name: str, given: Any) -> Any:
    """`given` as a NumPy array that torch can take over: writable, in this machine's byte order."""
    try:
        array = np.asarray(given)
    except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
        raise ValueError(f"{name} must be numbers in sequences of one length; {_first_line(error)}") from error
    if array.dtype.kind == "O" and _holds_large_integers(array):
        kind = IndexError if name == "index" else ValueError
        raise kind(f"{name} must be numbers that fit 64 bits; got {_largest(array)}")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return array if array.flags.writeable and all(step >= 0 for step in array.strides) else array.copy()


def _holds_large_integers(array: Any) -> bool:
    return bool(array.size) and all(isinstance(value, int) for value in array.flat)


def _largest(array: Any) -> int:
    return max((int(value) for value in array.flat), key=abs)


def _kind(array: Any) -> str:
    return str(array.dtype) if array.dtype.kind != "O" else type(next(iter(array.flat), None)).__name__


def _require_memory(name: str, tensor: Tensor) -> None:
    if tensor.is_meta or tensor.layout is not torch.strided or tensor.is_nested:
        what = "meta" if tensor.is_meta else "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
        raise TypeError(f"{name} must be a dense tensor with memory; got a {what} one")


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:120]
