"""Room for some steps of several lanes, filled one step at a time and handed out once as rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Leaf", "Path", "StepBlock", "array_of", "leaves_of", "nested"]

Path = tuple[str, ...]
Leaf = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape of a row and dtype."""


def leaves_of(tree: Any, path: Path = ()) -> dict[Path, np.ndarray]:
    """Every array of a nested mapping (dict, Batch, TensorDict; tensors become arrays) under its path from `path` on."""
    if hasattr(tree, "keys"):
        leaves: dict[Path, np.ndarray] = {}
        for name in tree.keys():  # noqa: SIM118 - iterating a Batch gives its rows
            leaves.update(leaves_of(tree[name], (*path, name)))
        return leaves
    return {path: array_of(tree)}


def array_of(value: Any) -> np.ndarray:
    """An array, or a tensor as one; what NumPy has no type for (bfloat16) becomes float32."""
    if not isinstance(value, Tensor):
        return np.asarray(value)
    tensor = value.detach()
    array: np.ndarray = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy(force=True)
    return array


def nested(leaves: Mapping[Path, Any]) -> Any:
    """The dict of dicts whose leaves these are; the leaf itself where its path is `()`."""
    if () in leaves:
        return leaves[()]
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        place = tree
        for name in path[:-1]:
            place = place.setdefault(name, {})
        place[path[-1]] = leaf
    return tree


class StepBlock:
    """Room for `steps` steps of `lanes` lanes.

    declared: shapes and dtypes of columns that are known beforehand; others are as the first step shows them.
    by_lane: rows are handed out lane by lane, each in the order of time; else step by step, each in the order of lanes.
    """

    def __init__(self, lanes: int, steps: int, declared: Mapping[Path, Leaf], *, by_lane: bool) -> None:
        self._size = (lanes, steps) if by_lane else (steps, lanes)
        self._lanes = lanes
        self._steps = steps
        self._declared = dict(declared)
        self._by_lane = by_lane
        self._used = 0
        self._columns: dict[Path, np.ndarray] = {}
        self._kept = np.zeros(self._size, dtype=np.bool_)

    def __len__(self) -> int:
        """Steps (not rows) put in since the last `take`."""
        return self._used

    @property
    def full(self) -> bool:
        """No room for another step."""
        return self._used == self._steps

    def fits(self, values: Mapping[Path, np.ndarray]) -> bool:
        """Whether a step with these columns can join those that were put in before, with nothing cast or cut."""
        columns = self._columns
        return not columns or (
            columns.keys() == values.keys()
            and all(
                column.shape[2:] == values[path].shape[1:]
                and (path in self._declared or column.dtype == values[path].dtype)
                for path, column in columns.items()
            )
        )

    def put(self, values: Mapping[Path, np.ndarray], lanes: np.ndarray | None, kept: np.ndarray) -> None:
        """Add one step: rows `[R]` of `lanes` (int `[R]`; None: all of them), of which `take` gives those that are `kept` (bool `[R]`).

        Raises ValueError for columns of another shape, and then holds what it held.
        """
        if self.full:
            raise RuntimeError(f"steps ({self._steps}) must be taken before more are put; got one more")
        columns = self._columns
        if not columns:
            # Fresh arrays for each block: the rows handed out may still be on their way to the buffer.
            columns = {
                path: np.empty(self._size + shape, dtype)
                for path, (shape, dtype) in (
                    (path, self._declared.get(path, (value.shape[1:], value.dtype))) for path, value in values.items()
                )
            }
        count = self._lanes if lanes is None else len(lanes)
        for path, column in columns.items():
            if path not in values or values[path].shape != (count, *column.shape[2:]):
                got = "none" if path not in values else list(values[path].shape)
                raise ValueError(
                    f"{'.'.join(path)} must have shape {[count, *column.shape[2:]]} in this step; got {got}"
                )
        who: Any = slice(None) if lanes is None else lanes
        where = (who, self._used) if self._by_lane else (self._used, who)
        for path, column in columns.items():
            column[where] = values[path]
        self._columns = columns
        if lanes is not None:
            self._kept[(slice(None), self._used) if self._by_lane else self._used] = False
        self._kept[where] = kept
        self._used += 1

    def take(self) -> tuple[dict[Path, np.ndarray], np.ndarray]:
        """The kept rows and the lane of each; the block is empty afterwards and the arrays are the caller's own."""
        used = (slice(None), slice(self._used)) if self._by_lane else (slice(self._used),)
        kept = self._kept[used]
        everything = self._used == self._steps and bool(kept.all())
        rows = {
            path: column.reshape(-1, *column.shape[2:]) if everything else column[used][kept]
            for path, column in self._columns.items()
        }
        order = np.arange(self._lanes)
        lanes = np.broadcast_to(order[:, None] if self._by_lane else order, kept.shape)[kept]
        self._columns = {}
        self._used = 0
        return rows, lanes
