"""`Batch`: named arrays that belong together, nested as deep as needed, indexed all at once."""

from __future__ import annotations

import copy as copying
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase

from replay_service.episodic.batch_arithmetic import combined, overwrite
from replay_service.episodic.batch_conversion import content_of_tensordict, numpy_leaf, tensordict_of, torch_leaf
from replay_service.episodic.batch_joining import concatenated, stacked
from replay_service.episodic.batch_leaves import as_leaf, has_rows, same
from replay_service.episodic.batch_names import NamedValues
from replay_service.episodic.batch_nulls import full_rows, has_null, null_masks, with_rows_at
from replay_service.episodic.batch_rows import assignments, lengths, random_order, rows_at

__all__ = ["Batch"]

Content = dict[str, Any]
Operator = Callable[[Any, Any], Any]


class Batch(NamedValues):
    """Named values, given as a dict, as keywords, or as a list of dicts or batches, which are stacked.

    Numbers become arrays of no dimension; lists become arrays (of dtype object where they hold strings, None or rows of
    different lengths); lists of tensors of one shape become a tensor; dicts become nested batches; lists of dicts become
    stacked ones; arrays, tensors, None and all other objects are kept by reference. The same holds for whatever is
    assigned later, as `batch.name = value` or `batch["name"] = value`.

    A name that is also the name of a method is reached by item only: `batch["items"]`.

    Args:
        batch_dict: dict, Batch, or sequence (list, tuple, object array) of these.
        copy: keep copies of arrays, tensors and objects, at any depth.

    Raises:
        TypeError: a name is no str (then also an AssertionError); tensors of a list differ in shape.
    """

    __slots__ = ()

    @classmethod
    def from_tensordict(cls, data: TensorDictBase) -> Batch:
        """The entries of `data` by reference: tensors stay tensors, nested ones become nested batches.

        What is no tensor becomes an object array, where there is one for each row.
        """
        return cls.wrap(content_of_tensordict(data, cls.wrap))

    def to_tensordict(self) -> TensorDictBase:
        """A TensorDict `[len]` on the same memory (`[]` where a leaf has no rows); None and empty batches are left out.

        Arrays of objects become non-tensor data. Only arrays that cannot be written to or run backwards are copied.
        """
        leaves_have_rows = all(has_rows(leaf) for leaf in _leaves(self))
        return tensordict_of(self, [len(self)] if leaves_have_rows and not self.is_empty(recurse=True) else [])

    # Rows

    def __len__(self) -> int:
        return min(lengths(self), default=0)

    @property
    def shape(self) -> list[int]:
        """The extents that all leaves have in common, the least of each; `[]` where a leaf has none."""
        shapes = [
            value.shape if isinstance(value, Batch) else list(getattr(value, "shape", ()))
            for value in self.values()
            if not (value is None or (isinstance(value, Batch) and value.is_empty(recurse=True)))
        ]
        return [min(extents) for extents in zip(*shapes, strict=False)] if shapes else []

    def __iter__(self) -> Iterator[Batch]:
        for row in range(len(self)):
            yield self[row]

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            return super().__getitem__(index)
        if not self.keys():
            raise IndexError(f"index ({index!r}) must be of a batch with content; got an empty one")
        return self.wrap(rows_at(self, index))

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, str):
            super().__setitem__(index, value)
            return
        if not isinstance(value, Mapping | Batch):
            raise ValueError(
                f"value ({value!r}) must be a batch or dict to be set at an index; got {type(value).__name__}"
            )
        source = value if isinstance(value, Batch) else Batch(value)
        # All of it is checked and converted before the first row is written.
        for leaf, where, ready in list(assignments(self, index, source)):
            leaf[where] = ready

    def empty_(self, index: Any = None) -> Batch:
        """Reset the rows at `index` (all by default) to 0, or None for objects, in place; returns itself."""
        self[slice(None) if index is None else index] = Batch()
        return self

    def empty(self, index: Any = None) -> Batch:
        """A copy with the rows at `index` (all by default) reset."""
        return copying.deepcopy(self).empty_(index)

    def is_empty(self, recurse: bool = False) -> bool:
        """Whether there are no names; with `recurse`, whether there is nothing but empty nested batches."""
        if not recurse:
            return not self.keys()
        return all(isinstance(value, Batch) and value.is_empty(recurse=True) for value in self.values())

    def split(
        self, size: int, shuffle: bool = True, merge_last: bool = False, generator: torch.Generator | None = None
    ) -> Iterator[Batch]:
        """Yields the rows in pieces of `size`, each row once; the last piece may be smaller.

        Args:
            size: rows of a piece, at least 1; -1 for all of them. It may exceed the length.
            shuffle: in random order.
            merge_last: a smaller last piece is added to the one before it.
            generator: makes the order; None for one that is seeded anew.

        Raises:
            ValueError: `size` is neither positive nor -1.
        """
        length = len(self)
        if size != -1 and size < 1:
            raise ValueError(f"size ({size}) must be at least 1, or -1 for everything; got {size}")
        if not length:
            return iter(())
        starts = list(range(0, length, size if size != -1 else length))
        if merge_last and len(starts) > 1 and length % size:
            starts.pop()
        return self._pieces(starts, random_order(length, generator) if shuffle else None)

    def _pieces(self, starts: list[int], order: np.ndarray | None) -> Iterator[Batch]:
        for start, stop in zip(starts, [*starts[1:], len(self)], strict=True):
            yield self[slice(start, stop) if order is None else order[start:stop]]

    # Several batches

    @staticmethod
    def stack(batches: Iterable[Mapping[str, Any] | Batch], axis: int = 0) -> Batch:
        """The batches side by side along a new `axis`. Names that some lack are filled with 0 or None where `axis` is 0.

        Raises ValueError where `axis` is not 0 and names or shapes differ, TypeError for tensors of different shapes.
        """
        return Batch.wrap(stacked(map(as_batch, batches), axis, Batch.wrap))

    @staticmethod
    def cat(batches: Iterable[Mapping[str, Any] | Batch]) -> Batch:
        """The rows of the batches one behind the other; empty batches are left out.

        Raises ValueError where names or row shapes differ, and for leaves without rows.
        """
        given = [batch for batch in map(as_batch, batches) if not batch.is_empty()]
        return Batch.wrap(concatenated(given, Batch.wrap))

    def stack_(self, batches: Sequence[Mapping[str, Any] | Batch], axis: int = 0) -> None:
        """Become the stack of itself (unless empty) and `batches`."""
        self._become(Batch.stack([self, *batches] if self.keys() else batches, axis))

    def cat_(self, batches: Mapping[str, Any] | Batch | Sequence[Mapping[str, Any] | Batch]) -> None:
        """Become itself followed by `batches`, one or several."""
        others = [batches] if isinstance(batches, Mapping | Batch) else batches
        self._become(Batch.cat([self, *others]))

    # Arithmetic: every leaf, keeping its dtype

    def __add__(self, other: Number | Batch) -> Batch:
        return self._combined(operator.add, other, "+")

    def __iadd__(self, other: Number | Batch) -> Batch:
        return self._written(operator.add, other, "+=")

    def __mul__(self, other: Number) -> Batch:
        return self._combined(operator.mul, other, "*")

    def __imul__(self, other: Number) -> Batch:
        return self._written(operator.mul, other, "*=")

    def __truediv__(self, other: Number) -> Batch:
        return self._combined(operator.truediv, other, "/")

    def __itruediv__(self, other: Number) -> Batch:
        return self._written(operator.truediv, other, "/=")

    def _combined(self, operate: Operator, other: Number | Batch, sign: str) -> Batch:
        return self.wrap(combined(self, operate, other, sign))

    def _written(self, operate: Operator, other: Number | Batch, sign: str) -> Batch:
        return self._become(self.wrap(overwrite(self, combined(self, operate, other, sign))))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Batch):
            return NotImplemented
        if self.keys() != other.keys():
            return False
        return all(
            value == other[name] if isinstance(value, Batch) else same(value, other[name])
            for name, value in self.items()
        )

    __hash__ = None  # type: ignore[assignment]

    # Nulls

    def isnull(self) -> Batch:
        """bool arrays in the shapes of the leaves: True for None and NaN."""
        return self.wrap(null_masks(self))

    def hasnull(self) -> bool:
        """Whether any leaf holds None or NaN."""
        return has_null(self)

    def dropnull(self) -> Batch:
        """The rows in which no leaf holds None or NaN; a leaf that is None as a whole counts as no leaf."""
        full = full_rows(self, len(self))
        return self[full] if self.keys() else Batch()

    def set_array_at_key(self, seq: Any, key: str, index: Any = None, default_value: Any = None) -> None:
        """Set column `key` to `seq`, or its rows at `index`; a new column holds `default_value` (NaN, None) elsewhere.

        Raises:
            ValueError: without `index`, `seq` must have as many rows as the batch; with it, they must fit there. Or the
                column cannot hold `default_value`.
            TypeError: a new column of integers or bools without `default_value`.
        """
        super().__setitem__(key, with_rows_at(self.get(key), as_leaf(seq), key, index, len(self), default_value))

    # Arrays and tensors

    def to_numpy(self) -> Batch:
        """A batch with arrays in the place of tensors, on the same memory where they are on the CPU."""
        return self._mapped(numpy_leaf)

    def to_torch(self, dtype: torch.dtype | None = None, device: str | torch.device = "cpu") -> Batch:
        """A batch with tensors in the place of arrays of numbers, on the same memory where dtype and device allow it.

        Objects, strings and None stay what they are. dtype: of every tensor; None keeps that of each array.
        """
        return self._mapped(lambda leaf: torch_leaf(leaf, dtype, device))

    def to_numpy_(self) -> Batch:
        """`to_numpy` in place; returns itself."""
        return self._become(self.to_numpy())

    def to_torch_(self, dtype: torch.dtype | None = None, device: str | torch.device = "cpu") -> Batch:
        """`to_torch` in place; returns itself."""
        return self._become(self.to_torch(dtype, device))

    def _mapped(self, convert: Callable[[Any], Any]) -> Batch:
        return self.wrap(
            {
                name: value._mapped(convert) if isinstance(value, Batch) else convert(value)
                for name, value in self.items()
            }
        )


def as_batch(value: Mapping[str, Any] | Batch) -> Batch:
    """`value` itself if it is a batch, or one made of it."""
    return value if isinstance(value, Batch) else Batch(value)


def _leaves(batch: Batch) -> Iterator[Any]:
    for value in batch.values():
        if isinstance(value, Batch):
            yield from _leaves(value)
        elif value is not None:
            yield value
