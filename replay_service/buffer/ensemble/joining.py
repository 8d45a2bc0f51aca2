"""From batches of several buffers to one: stacked, `[buffers, rows, …]`, or one behind the other, `[rows, …]`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch import Tensor

from replay_service.errors import LayoutError, key_name
from replay_service.specs import Key, narrowed
from replay_service.structure import Rows, build, flatten_rows

__all__ = ["Join", "concatenated", "joined_values", "stacked_batches", "unify_entries"]

Join = Callable[[Sequence[Any], Sequence[str]], Any]
"""Makes one batch of several, whose names are given for messages."""

Names = str | Key


def stacked_batches(batches: Sequence[Any], names: Sequence[str]) -> Any:
    """The batches `[rows, …]` as one `[batches, rows, …]`.

    Raises:
        LayoutError: they differ in their entries, or in dtype or shape of one.
    """
    return _joined(batches, names, torch.stack, dims=1)


def concatenated(batches: Sequence[Any], names: Sequence[str]) -> Any:
    """The batches `[rows, …]` one behind the other; they may differ in their number of rows.

    Raises:
        LayoutError: they differ in their entries, or in dtype or shape of one.
    """
    return _joined(batches, names, torch.cat, dims=0)


def unify_entries(batches: Sequence[Any], infos: Sequence[dict[Any, Any]]) -> None:
    """Leaves out of TensorDicts what a sampler said of some of them only, so that all have the same entries.

    Stored entries stay: whoever stores different ones in different buffers has to say what becomes of them.
    """
    if not all(isinstance(batch, TensorDictBase) for batch in batches):
        return
    held = [_keys_of(batch) for batch in batches]
    for batch, info in zip(batches, infos, strict=True):
        for name in info:
            key = (name,) if isinstance(name, str) else name
            if not all(key in keys for keys in held) and batch.get(name, None) is not None:
                del batch[name]


def _joined(batches: Sequence[Any], names: Sequence[str], join: Callable[..., Any], dims: int) -> Any:
    if len(batches) == 1 and dims == 0:
        return batches[0]
    rows = [_flattened(batch) for batch in batches]
    if any(taken is None for taken in rows):
        # Not made of dense tensors: TensorDicts can be joined all the same, other records stay by themselves.
        if all(isinstance(batch, TensorDictBase) for batch in batches):
            _require_same_keys([_keys_of(batch) for batch in batches], names)
        return join(list(batches)) if all(map(is_tensor_collection, batches)) else list(batches)
    taken = [found for found in rows if found is not None]
    _require_same_leaves(taken, names, same_rows=dims == 1)
    columns = []
    for key in taken[0].keys:
        columns.append(join([found.tensors[found.keys.index(key)] for found in taken]))
    shape = columns[0].shape[: 1 + dims]
    return build(narrowed(taken[0].spec, -dims), columns, tuple(shape))


def _flattened(batch: Any) -> Rows | None:
    try:
        return flatten_rows(batch)
    except LayoutError:
        return None


def _keys_of(batch: TensorDictBase) -> set[Key]:
    return {(key,) if isinstance(key, str) else tuple(key) for key in batch.keys(include_nested=True, leaves_only=True)}


def _require_same_keys(keys: Sequence[set[Key]], names: Sequence[str]) -> None:
    for name, found in zip(names[1:], keys[1:], strict=True):
        if found != keys[0]:
            lacking, further = (sorted(map(key_name, part)) for part in (keys[0] - found, found - keys[0]))
            raise LayoutError(
                f"{name} must have the entries of {names[0]} to be drawn into one batch; it lacks {lacking} and has {further} besides: "
                f"rename or leave out entries by transforms of the buffers, or pass collate_fn"
            )


def _require_same_leaves(rows: Sequence[Rows], names: Sequence[str], same_rows: bool) -> None:
    _require_same_keys([set(found.keys) for found in rows], names)
    first = {leaf.key: leaf for leaf in rows[0].leaves()}
    for name, found in zip(names[1:], rows[1:], strict=True):
        for leaf in found.leaves():
            if leaf != first[leaf.key]:
                raise LayoutError(
                    f"{name} must fit {names[0]} to be drawn into one batch: {first[leaf.key]}; got {leaf}"
                )
        if same_rows and found.count != rows[0].count:
            raise LayoutError(
                f"{name} ({found.count} rows) must give as many rows as {names[0]} to be stacked; got {rows[0].count}: draw slices of one "
                f"length, or pass collate_fn"
            )


def joined_values(values: Sequence[Any], rows: Sequence[int], stacks: bool) -> Tensor | None:
    """What samplers say of parts of `rows` rows each as one tensor; None where it is none, or not one per row, or of other shapes."""
    made = [torch.stack(value, 1) if isinstance(value, tuple) else value for value in values]
    aligned = all(isinstance(v, Tensor) and v.ndim and v.shape[0] == n for v, n in zip(made, rows, strict=True))
    if not aligned or len({(value.dtype, value.shape[1:]) for value in made}) > 1 or (stacks and len(set(rows)) > 1):
        return None
    return torch.stack(made) if stacks else torch.cat(made)
