"""What is stored of all steps: nested entries by name, each a column `[size, *shape]`.

The first steps fix names, shapes and dtypes. Entries that turn up later are added, with zeros (None for objects) in the
steps before; those that are left out later are filled so. What a step cannot do without (`NEEDED`) is never filled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from replay_service.episodic.batch import Batch
from replay_service.episodic.columns import StepColumn, column_for
from replay_service.episodic.plan import Plan, Reading
from replay_service.errors import LayoutError, key_name
from replay_service.specs import Key

__all__ = ["Checked", "StepStore", "leaves_of"]

Ints = NDArray[np.int64]

NEEDED = ("obs", "act", "rew", "obs_next", "done", "terminated", "truncated")
ALWAYS = ("obs", "act", "rew", "done", "terminated", "truncated")
DTYPES = {
    "rew": np.dtype(np.float64),
    **dict.fromkeys(("done", "terminated", "truncated"), np.dtype(np.bool_)),
}
"""Entries whose type does not follow the first step's."""


class Checked(NamedTuple):
    """Rows that can be written without a check: (column, rows or None for zeros), and which columns are new."""

    writes: list[tuple[StepColumn, Any]]
    fresh: list[StepColumn]

    def rows(self, part: Ints) -> Checked:
        """Some of the rows, int64 `[n]`."""
        return Checked([(column, None if rows is None else rows[part]) for column, rows in self.writes], self.fresh)


class StepStore:
    """Columns by nested name.

    Args:
        size: slots.

    Attributes:
        whole: all entries as they are stored, nested; each `[size, *shape]`, views of the memory itself.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._columns: dict[Key, StepColumn] = {}
        self._tree: dict[str, Any] = {}
        self.whole = Batch()

    def __contains__(self, name: str) -> bool:
        return name in self._tree

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the outer level, as they came."""
        return tuple(self._tree)

    @property
    def columns(self) -> dict[Key, StepColumn]:
        """All columns by nested name; do not change the dictionary."""
        return self._columns

    def column(self, key: str | Key) -> StepColumn:
        """One column; `KeyError` names those that exist."""
        wanted = (key,) if isinstance(key, str) else tuple(key)
        if wanted in self._columns:
            return self._columns[wanted]
        raise KeyError(f"key ({key_name(wanted)}) must be one of {[key_name(known) for known in self._columns]}")

    # -- writing ----------------------------------------------------------------------------------------------------

    def check(self, content: Mapping[str, Any], rows: int) -> Checked:
        """Holds rows against what is stored. Nothing changes.

        Args:
            content: nested entries, each `[rows, *shape]` (None: left out).
            rows: their number.

        Raises:
            LayoutError: a needed entry is missing, or one has another shape, a type that does not fit, another number
                of rows, or is nested where it was not.
        """
        checked = Checked([], [])
        given: set[Key] = set()
        for key, value in leaves_of(content):
            column = self._columns.get(key)
            given.add(key)
            _require_rows(key, value, rows)
            if column is None:
                self._refuse_place(key)
                column = column_for(key, _rows_of(value, rows), self._size, DTYPES.get(key[0]))
                checked.fresh.append(column)
            if value is None:
                if key[0] in NEEDED and key in self._columns:
                    raise LayoutError(f"{key_name(key)} (None) must be given: all steps stored before have it")
                checked.writes.append((column, None))
                continue
            if key[0] not in NEEDED:
                value = _without_none(value, column)
            fitting = column.fit(value)
            if len(fitting) != rows:
                raise LayoutError(f"{key_name(key)} ({len(fitting)} rows) must have the {rows} rows of the others")
            checked.writes.append((column, fitting))
        if len(given) - len(checked.fresh) < len(self._columns):
            for key, column in self._columns.items():
                if key in given:
                    continue
                if key[0] in NEEDED:
                    raise LayoutError(f"{key_name(key)} (missing) must be given: all steps stored before have it")
                checked.writes.append((column, None))
        return checked

    def write(self, slots: Ints, checked: Checked) -> None:
        """Writes checked rows to `slots` int64 `[n]`; of a slot named twice, the last row stays."""
        if checked.fresh:
            self.register(checked.fresh)
        for column, rows in checked.writes:
            column.write(slots, rows)

    def copy(self, before: Ints, after: Ints) -> None:
        """Copies the steps at the slots `before` to `after`, int64 `[n]`; of a slot named twice, the last row stays."""
        for column in self._columns.values():
            column.write(after, column.read(before))

    def register(self, fresh: list[StepColumn]) -> None:
        """Adds columns, or replaces those of the same name."""
        for column in fresh:
            self._columns[column.key] = column
            level = self._tree
            for part in column.key[:-1]:
                level = level.setdefault(part, {})
            level[column.key[-1]] = column
        self.whole = Batch.wrap(_mapped(self._tree, lambda column: column.whole))

    def clear(self) -> None:
        """Forgets all entries."""
        self._columns, self._tree, self.whole = {}, {}, Batch()

    # -- state ------------------------------------------------------------------------------------------------------

    def rows(self, slots: Ints) -> dict[str, Any]:
        """Copies of all columns at `slots` `[n]`, by their nested names as JSON."""
        return {json.dumps(key): column.read(slots) for key, column in self._columns.items()}

    def load_rows(self, slots: Ints, rows: Mapping[str, Any]) -> None:
        """Takes over what `rows` gave of as many slots; all other slots are empty.

        Raises:
            ValueError: they are not as many rows of each entry, or what every step has is missing.
        """
        fresh = []
        for name, values in rows.items():
            key = tuple(json.loads(name))
            _require_rows(key, values, slots.size)
            column = column_for(key, values, self._size, DTYPES.get(key[0]))
            fitting = column.fit(values)
            if len(fitting) != slots.size:
                raise ValueError(
                    f"{key_name(key)} ({len(fitting)} rows) must have one row for each of {slots.size} steps"
                )
            column.write(slots, fitting)
            fresh.append(column)
        names = {column.key[0] for column in fresh}
        missing = [name for name in ALWAYS if name not in names]
        if slots.size and missing:
            raise ValueError(f"{missing[0]} (missing) must be among the entries of stored steps; got {sorted(names)}")
        self.clear()
        self.register(fresh)

    # -- reading ----------------------------------------------------------------------------------------------------

    def has(self, key: Key) -> bool:
        """Whether there is an entry or a level of entries of that nested name."""
        return self._part(key) is not None

    def reading(self, key: Key, slots: Ints) -> Any:
        """What is to be read of an entry that exists, at `slots` int64 of any shape (which must be stored): a `Reading`, or
        a dictionary of them where it is nested."""
        return _readings(self._part(key), slots)

    def read(self, key: Key, slots: Ints) -> Any:
        """Copies of an entry that exists, nested as it is, at `slots` int64 of any shape (which must be stored)."""
        plan = Plan()
        plan.entries["entry"] = self.reading(key, slots)
        return plan.build()["entry"]

    @property
    def has_objects(self) -> bool:
        """Whether an entry is made of objects."""
        return any(column.tensor is None for column in self._columns.values())

    def nulls(self, slots: Ints) -> NDArray[np.bool_]:
        """Which of the steps at `slots` `[n]` have NaN or None in any entry; bool `[n]`."""
        found = np.zeros(slots.size, np.bool_)
        for column in self._columns.values():
            flags = column.nulls(slots)
            if flags is not None:
                found |= flags.any(axis=tuple(range(1, flags.ndim)))
        return found

    def _part(self, key: Key) -> Any:
        part: Any = self._tree
        for name in key:
            part = part.get(name) if isinstance(part, dict) else None
        return part

    def _refuse_place(self, key: Key) -> None:
        """Refuses a new column where others lie below its name, or one above."""
        for known in self._columns:
            shorter = min(len(known), len(key))
            if known[:shorter] == key[:shorter]:
                raise LayoutError(
                    f"{key_name(key)} must be nested as in the steps stored before, which have {key_name(known)}"
                )


def leaves_of(content: Mapping[str, Any] | Batch, prefix: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Nested name and value of every leaf of a `Batch` or of dictionaries."""
    for name, value in content.items():
        if isinstance(value, Batch | dict):
            yield from leaves_of(value, (*prefix, name))
        else:
            yield (*prefix, name), value


def _mapped(tree: dict[str, Any], function: Any) -> dict[str, Any]:
    return {
        name: Batch.wrap(_mapped(part, function)) if isinstance(part, dict) else function(part)
        for name, part in tree.items()
    }


def _readings(part: Any, slots: Ints) -> Any:
    if type(part) is dict:
        return {name: _readings(inner, slots) for name, inner in part.items()}
    return Reading(part, slots)


def _without_none(value: Any, column: StepColumn) -> Any:
    """Rows for a column of numbers, with zeros where an entry that may be missing is None."""
    if not isinstance(value, np.ndarray) or value.dtype != object or column.tensor is None:
        return value
    if all(row is None for row in value):
        return np.zeros((len(value), *column.shape))
    return np.array([np.zeros(column.shape) if row is None else row for row in value])


def _rows_of(value: Any, rows: int) -> Any:
    """`value` as rows that a new column can be made for."""
    return np.full(rows, None, object) if value is None else value


def _require_rows(key: Key, value: Any, rows: int) -> None:
    """Refuses what has no rows, and tensors that are no memory to copy from."""
    if value is None:
        return
    if not isinstance(value, np.ndarray | np.generic | Tensor):
        raise LayoutError(
            f"{key_name(key)} ({value!r:.60}) must be an array or tensor [{rows}, …]; got {type(value).__name__}"
        )
    if isinstance(value, Tensor) and (
        value.is_meta or value.is_nested or value.is_quantized or value.layout is not torch.strided
    ):
        kind = (
            "meta"
            if value.is_meta
            else "nested"
            if value.is_nested
            else "quantized"
            if value.is_quantized
            else "sparse"
        )
        raise LayoutError(f"{key_name(key)} must be a dense tensor with memory; got a {kind} one")
    if value.ndim == 0:
        raise LayoutError(f"{key_name(key)} ({value}) must have a leading dimension of {rows}; got a single value")
