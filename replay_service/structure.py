"""Rows: nested records taken apart into named tensors, and put together again.

Users hand over a tensor, a TensorDict, a tensorclass, or dicts, tuples and lists of these. Everything inside works on `Rows`: a flat
list of leaves (nested key, tensor) with one leading dimension in common, and a spec (`replay_service.specs`) that says how the
leaves are put together.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, is_non_tensor, is_tensor_collection, is_tensorclass
from torch import Tensor

from replay_service.errors import LayoutError, key_name
from replay_service.specs import Key, Spec, widened

__all__ = [
    "Key",
    "Leaf",
    "Rows",
    "Spec",
    "build",
    "class_named",
    "class_path",
    "flatten_rows",
    "folded",
    "leaf_of",
    "row_of",
]

STRIDED = torch.strided


@dataclass(frozen=True, slots=True)
class Leaf:
    """One column: nested key, dtype and the shape of one row."""

    key: Key
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        size = self.dtype.itemsize
        for extent in self.shape:
            size *= extent
        return size

    def __str__(self) -> str:
        return f"{key_name(self.key) or 'value'}: {str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


@dataclass(slots=True)
class Rows:
    """`count` records as flat leaves: `tensors[i]` has the nested key `keys[i]` and the shape `[count, *row shape]`."""

    keys: list[Key]
    tensors: list[Tensor]
    spec: Spec
    count: int
    checked: bool = False  # a storage has validated them and put them into its own order

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, part: slice) -> Rows:
        """The rows of one slice, as views."""
        tensors = [tensor[part] for tensor in self.tensors]
        return Rows(self.keys, tensors, self.spec, len(range(*part.indices(self.count))), self.checked)

    def take(self, rows: Tensor) -> Rows:
        """The rows `rows` int64 `[n]`, as copies."""
        tensors = [tensor[rows.to(tensor.device)] for tensor in self.tensors]
        return Rows(self.keys, tensors, self.spec, rows.numel(), self.checked)

    def get(self, key: str | Key) -> Tensor:
        """The leaf named `key`; `KeyError` lists what exists."""
        wanted = (key,) if isinstance(key, str) else tuple(key)
        for place, name in enumerate(self.keys):
            if name == wanted:
                return self.tensors[place]
        raise KeyError(f"key ({key_name(wanted)}) must be one of {[key_name(name) for name in self.keys]}")

    def leaves(self) -> tuple[Leaf, ...]:
        """Key, dtype and row shape of every leaf."""
        return tuple(map(leaf_of, self.keys, self.tensors))

    def build(self) -> Any:
        """The records in the form they were handed over in."""
        return build(self.spec, self.tensors, (self.count,))


def leaf_of(key: Key, tensor: Tensor) -> Leaf:
    """The column that `tensor` `[rows, *shape]` fits in."""
    return Leaf(key, tensor.dtype, tuple(tensor.shape[1:]))


def flatten_rows(data: Any, *, leading: int = 1) -> Rows:
    """Takes records apart; the leading dimension of every leaf is the row.

    Args:
        data: tensor `[B, *shape]`, TensorDict or tensorclass with batch size `[B, …]`, or dict, tuple, list of those.
        leading: leading dimensions that make up the batch (checked to exist).

    Raises:
        LayoutError: a leaf is no dense tensor, has no leading dimension, or leaves disagree in their number of rows.
    """
    keys: list[Key] = []
    tensors: list[Tensor] = []
    if isinstance(data, TensorDict):  # the usual case, without the checks that tensordict itself has made
        spec: Spec = _walk_tensordict(data, (), keys, tensors)
        if len(data.batch_size) < leading:
            raise LayoutError(f"batch_size ({list(data.batch_size)}) must have at least {leading} dimension(s) of rows")
        if not keys:
            raise LayoutError("data must hold at least one tensor; got an empty TensorDict")
        return Rows(keys, tensors, spec, data.batch_size[0])
    spec = _walk(data, (), keys, tensors)
    if not keys:
        raise LayoutError(f"data must hold at least one tensor; got an empty {type(data).__name__}")
    count = -1
    for key, tensor in zip(keys, tensors, strict=True):
        if tensor.ndim < leading:
            raise LayoutError(
                f"{_shown(key)} must have {leading} leading dimension(s) of rows; got shape {list(tensor.shape)}"
            )
        if count not in (-1, tensor.shape[0]):
            raise LayoutError(
                f"{_shown(key)} ({tensor.shape[0]} rows) must have as many rows as {_shown(keys[0])} ({count} rows)"
            )
        count = tensor.shape[0]
    return Rows(keys, tensors, spec, count)


def row_of(data: Any) -> Rows:
    """One record without a leading dimension, as `Rows` of count 1 (views)."""
    keys: list[Key] = []
    tensors: list[Tensor] = []
    spec = _walk(data, (), keys, tensors)
    if not keys:
        raise LayoutError(f"data must hold at least one tensor; got an empty {type(data).__name__}")
    return Rows(keys, [tensor.unsqueeze(0) for tensor in tensors], widened(spec), 1)


def folded(rows: Rows, batch: tuple[int, ...]) -> Rows:
    """Rows whose leading dimensions, which must be `batch`, have become one: `[*batch, *shape]` to `[n, *shape]`.

    Raises:
        LayoutError: a leaf has other leading dimensions.
    """
    dims = len(batch)
    if dims == 1:
        return rows
    for key, tensor in zip(rows.keys, rows.tensors, strict=True):
        if tensor.shape[:dims] != batch:
            raise LayoutError(
                f"{_shown(key)} must have the leading shape {list(batch)}; got shape {list(tensor.shape)}"
            )
    count = math.prod(batch)
    tensors = [tensor.reshape(count, *tensor.shape[dims:]) for tensor in rows.tensors]
    return Rows(rows.keys, tensors, rows.spec, count)


def build(spec: Spec, tensors: Iterable[Tensor], batch: Sequence[int]) -> Any:
    """Puts leaves together as `spec` says; `batch` is the leading shape they have in common (`()` for one record)."""
    return _build(spec, iter(tensors), tuple(batch))


def _walk_tensordict(data: TensorDictBase, prefix: Key, keys: list[Key], tensors: list[Tensor]) -> Spec:
    parts: list[tuple[str, Spec]] = []
    for name, value in data.items() if type(data) is TensorDict else _entries(data, prefix):
        key = (*prefix, name)
        if type(value) is Tensor and value.layout is STRIDED and not value.is_meta:
            keys.append(key)
            tensors.append(value)
            parts.append((name, "t"))
        else:
            parts.append((name, _walk(value, key, keys, tensors)))
    return ("td", data.ndim, tuple(parts))


def _entries(data: TensorDictBase, prefix: Key) -> Iterator[tuple[str, Any]]:
    """The entries of a TensorDict that may have to make them first: a stack of records whose shapes differ cannot."""
    for name in data.keys():  # noqa: SIM118 - a tensorclass or TensorDict has no such `in`
        try:
            value = data.get(name)
        except RuntimeError as error:
            raise _cannot_be_dense(
                (*prefix, name),
                f"be dense: records of one shape; got {type(data).__name__} that cannot stack it: keep such data in a ListStorage",
            ) from error
        yield name, value


def _walk(data: Any, prefix: Key, keys: list[Key], tensors: list[Tensor]) -> Spec:
    if isinstance(data, Tensor):
        if data.layout is not STRIDED or data.is_nested or data.is_meta:
            raise _not_dense(prefix, data)
        keys.append(prefix)
        tensors.append(data)
        return "t"
    if is_non_tensor(data):
        raise _not_dense(prefix, data)
    if is_tensorclass(data):
        spec = _walk_tensordict(data, prefix, keys, tensors)
        kind: Any = type(data)
        return ("tc", spec[1], class_path(kind), spec[2])
    if is_tensor_collection(data):
        return _walk_tensordict(data, prefix, keys, tensors)
    if isinstance(data, dict):
        wrong = next((name for name in data if not isinstance(name, str)), None)
        if wrong is not None:
            raise LayoutError(f"{_shown(prefix)} key ({wrong!r}) must be a string; keep such data in a ListStorage")
        return ("dict", _walk_parts(data.items(), prefix, keys, tensors))
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        parts = _walk_parts(zip(data._fields, data, strict=True), prefix, keys, tensors)
        named: Any = type(data)
        return ("nt", class_path(named), parts)
    if isinstance(data, tuple | list):
        kind = "tuple" if isinstance(data, tuple) else "list"
        return (kind, _walk_parts(((str(place), value) for place, value in enumerate(data)), prefix, keys, tensors))
    raise _not_dense(prefix, data)


def _walk_parts(
    named: Iterable[tuple[str, Any]], prefix: Key, keys: list[Key], tensors: list[Tensor]
) -> tuple[tuple[str, Spec], ...]:
    return tuple((name, _walk(value, (*prefix, name), keys, tensors)) for name, value in named)


def _not_dense(key: Key, data: Any) -> LayoutError:
    if isinstance(data, Tensor) and data.is_meta:
        kind = "a meta tensor, which holds no data"
    else:
        kind = f"a tensor of layout {data.layout}" if isinstance(data, Tensor) else type(data).__name__
    return _cannot_be_dense(key, f"be a dense tensor; got {kind}: keep such data in a ListStorage")


def _cannot_be_dense(key: Key, rule: str) -> LayoutError:
    error = LayoutError(f"{_shown(key)} must {rule}")
    error.not_dense = _shown(key)
    return error


def _shown(key: Key) -> str:
    return key_name(key) or "data"


def _build(spec: Spec, tensors: Iterator[Tensor], batch: tuple[int, ...]) -> Any:
    if isinstance(spec, str):
        return next(tensors)
    kind = spec[0]
    if kind in ("td", "tc"):
        parts = spec[-1]
        extra = spec[1] - len(batch)
        values = {name: _build(part, tensors, batch) for name, part in parts}
        size = batch
        if extra > 0 and values:
            first = next(iter(values.values()))
            size = tuple(first.shape[: len(batch) + extra])
        built = TensorDict(values, batch_size=size)
        return built if kind == "td" else class_named(spec[2]).from_tensordict(built)
    built_parts = [(name, _build(part, tensors, batch)) for name, part in spec[-1]]
    if kind == "dict":
        return dict(built_parts)
    values_only = [value for _, value in built_parts]
    if kind == "nt":
        return class_named(spec[1])(*values_only)
    return values_only if kind == "list" else tuple(values_only)


@lru_cache(maxsize=256)
def class_path(kind: Hashable) -> str:
    """`module:Class`, from which the class can be found again.

    Raises:
        LayoutError: it cannot: a class made inside a function.
    """
    path = f"{kind.__module__}:{getattr(kind, '__qualname__', '')}"
    if class_named(path) is not kind:
        raise LayoutError(
            f"data ({path}) must be of a class at the top level of its module, so that it can be made again"
        )
    return path


def class_named(path: str) -> Any:
    """The class named `module:Class`; only a tensorclass or a named tuple is ever returned, so that a name from the wire can run
    nothing else."""
    module_name, _, class_name = path.partition(":")
    found: Any = sys.modules.get(module_name)
    for part in class_name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and (is_tensorclass(found) or (issubclass(found, tuple) and hasattr(found, "_fields"))):
        return found
    raise LayoutError(
        f"data ({path}) must be of a tensorclass or named tuple at the top level of a module imported here"
    )
