"""Missing values in batches: None among objects, NaN among floats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch import Tensor

from replay_service.episodic.batch_leaves import Nested, fitted, has_rows, numpy_index, torch_index

__all__ = ["full_rows", "has_null", "null_masks", "with_rows_at"]

Content = dict[str, Any]
Wrap = Callable[[Content], Nested]


def null_masks(batch: Nested) -> Content:
    """bool arrays in the shapes of the leaves, at any depth."""
    return {
        name: value.wrap(null_masks(value)) if isinstance(value, Nested) else _mask(value)
        for name, value in batch.items()
    }


def has_null(batch: Nested) -> bool:
    """Whether any leaf holds None or NaN."""
    return any(has_null(value) if isinstance(value, Nested) else bool(_mask(value).any()) for _, value in batch.items())


def full_rows(batch: Nested, rows: int) -> np.ndarray:
    """bool `[rows]`: no leaf holds None or NaN there."""
    full = np.ones(rows, dtype=np.bool_)
    for leaf in _row_leaves(batch):
        full &= ~_mask(leaf)[:rows].reshape(rows, -1).any(axis=1)
    return full


def _row_leaves(batch: Nested) -> Iterator[Any]:
    for _, value in batch.items():
        if isinstance(value, Nested):
            yield from _row_leaves(value)
        elif has_rows(value):
            yield value


def _mask(leaf: Any) -> np.ndarray:
    if isinstance(leaf, Tensor):
        leaf = leaf.detach().cpu().numpy()
    if not isinstance(leaf, np.ndarray | np.generic):
        return np.asarray(leaf is None)
    if leaf.dtype.kind in "fc":
        return np.asarray(np.isnan(leaf))
    if leaf.dtype == object:
        # NaN is the one value that differs from itself.
        null = [value is None or (isinstance(value, float) and value != value) for value in leaf.flat]
        return np.array(null, dtype=np.bool_).reshape(leaf.shape)
    return np.zeros(leaf.shape, dtype=np.bool_)


def with_rows_at(column: Any, values: Any, key: str, index: Any, rows: int, default: Any) -> Any:
    """Column `key` `[rows, …]` with `values` at `index` (everywhere if that is None), a new one if `column` is None.

    A new column is an array or a tensor as `values` are, and holds `default` in all other rows, by default NaN or None.
    Existing ones are written to in place.

    Raises:
        ValueError: without `index`, `values` must have `rows` rows; with it, they must fit there; and `default` must be
            of the kind of `values`.
        TypeError: a new column of numbers other than floats needs `default`.
    """
    if not has_rows(values):
        raise ValueError(f"seq ({values!r}) must be an array or tensor with rows to become {key!r}")
    if index is None:
        if len(values) != rows:
            raise ValueError(f"seq ({len(values)} rows) must have {rows} rows to become {key!r} without an index")
        return values
    if column is None:
        column = _new_column(values, key, rows, default)
    ready = fitted(key, column, index, values)
    column[torch_index(index, column) if isinstance(column, Tensor) else numpy_index(index)] = ready
    return column


def _new_column(values: Any, key: str, rows: int, default: Any) -> Any:
    """`[rows, …]` of `default` in the dtype of `values`, an array or a tensor as they are."""
    is_tensor = isinstance(values, Tensor)
    is_exact = (
        not values.dtype.is_floating_point and not values.dtype.is_complex if is_tensor else values.dtype.kind in "biu"
    )
    if default is None and is_exact:
        raise TypeError(
            f"default_value (None) must be given for a new column {key!r} of {values.dtype}, which has no null"
        )
    fill = default if default is not None else (np.nan if is_tensor or values.dtype != object else None)
    shape = (rows, *values.shape[1:])
    try:
        with np.errstate(invalid="ignore"):  # integers are looked at below
            column: Any = np.full(shape, fill, values.dtype) if not is_tensor else values.new_full(shape, fill)
        fits = not is_exact or all(value == default for value in column.reshape(-1)[:1].tolist())
    except (OverflowError, RuntimeError, TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError(f"default_value ({default!r}) must be one that {values.dtype} of {key!r} can hold")
    return column
