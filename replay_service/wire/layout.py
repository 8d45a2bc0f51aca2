"""Layouts: what a message's payload looks like, without the number of rows.

A layout is an ordered list of leaves (nested key, dtype, row shape, and which count gives its leading size) and a *static* part: what
is the same in every message of this kind, such as the spec that puts the leaves together. Its digest names it on the wire. Whoever
sends a layout for the first time sends its text along; both ends keep a bounded table, and an end that has forgotten one asks again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any, NamedTuple

import torch

from replay_service.arena import aligned
from replay_service.errors import LayoutError, key_name
from replay_service.specs import Key, Spec, keys_of, spec_from_json
from replay_service.structure import Leaf

__all__ = ["Axis", "Layout", "LayoutTable"]

MOST_LEAVES = 4096
MOST_DIMENSIONS = 16
MOST_BLOCKS = 16
LARGEST_EXTENT = 1 << 48


class Axis(IntEnum):
    """What the leading size of a leaf is."""

    ROWS = 0  # the header's `rows`
    ITEMS = 1  # the header's `items`: a second count, such as trajectories beside steps
    ONE = 2  # no leading size: the leaf's shape is the whole shape


DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    )
}


class Blocks(NamedTuple):
    """Bytes of a payload, and dtype, size and offset of every leaf in it."""

    size_bytes: int
    leaves: tuple[tuple[torch.dtype, tuple[int, ...], int], ...]


@dataclass(frozen=True)
class Layout:
    """Leaves, the axis of each, and the static part (JSON text)."""

    leaves: tuple[Leaf, ...]
    axes: tuple[Axis, ...]
    static: str = "{}"

    @cached_property
    def text(self) -> bytes:
        """The layout as JSON, as it travels."""
        leaves = [
            [list(leaf.key), str(leaf.dtype).removeprefix("torch."), list(leaf.shape), int(axis)]
            for leaf, axis in zip(self.leaves, self.axes, strict=True)
        ]
        return json.dumps([leaves, self.static], separators=(",", ":")).encode()

    @cached_property
    def digest(self) -> int:
        """The layout's name on the wire: 63 bits of a hash of its text, never 0."""
        return int.from_bytes(hashlib.blake2b(self.text, digest_size=8).digest(), "little") >> 1 or 1

    @cached_property
    def statics(self) -> dict[str, Any]:
        """The static part as a dictionary; do not change it."""
        return dict(json.loads(self.static))

    def counts(self, rows: int, items: int) -> list[int]:
        """Leading size of every leaf; 1 for leaves without one."""
        sizes = (rows, items, 1)
        return [sizes[axis] for axis in self.axes]

    @cached_property
    def spec(self) -> Spec:
        """The spec in the static part: how the records of the message are put together."""
        return spec_from_json(self.statics["spec"])

    @cached_property
    def places(self) -> dict[Key, int]:
        """The position of every leaf, by its key."""
        return {leaf.key: place for place, leaf in enumerate(self.leaves)}

    def part(self, name: str) -> tuple[tuple[Key, ...], tuple[int, ...]]:
        """Keys (without `name`) and positions of the leaves below `name`."""
        found = self._parts.get(name)
        if found is None:
            chosen = [(leaf.key[1:], place) for place, leaf in enumerate(self.leaves) if leaf.key[:1] == (name,)]
            found = self._parts[name] = (tuple(key for key, _ in chosen), tuple(place for _, place in chosen))
        return found

    def records(self, name: str) -> tuple[tuple[Key, ...], tuple[int, ...], Spec]:
        """Keys and positions of the leaves below `name`, which are records, and their spec; checked once.

        Raises:
            LayoutError: the spec names other leaves, or leaves do not share one leading size. Only a sender that checks nothing does that.
        """
        found = self._records.get(name)
        if found is None:
            keys, places = self.part(name)
            try:
                named = tuple(keys_of(self.spec))
            except (KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
                raise LayoutError(f"spec must say how records are put together; {error!r}") from error
            if not keys or named != keys:
                raise LayoutError(f"spec must name the leaves of the message; got {_names(named)} for {_names(keys)}")
            axes = {self.axes[place] for place in places}
            if len(axes) != 1 or Axis.ONE in axes:
                raise LayoutError(f"{_names(keys)} must all have the same number of rows")
            found = self._records[name] = (keys, places, self.spec)
        return found

    def blocks(self, rows: int, items: int) -> Blocks:
        """Where the leaves lie in a payload of so many rows and items; remembered for the sizes of late."""
        found = self._blocks.get((rows, items))
        if found is None:
            leading = ((rows,), (items,), ())
            offset, blocks = 0, []
            for leaf, axis in zip(self.leaves, self.axes, strict=True):
                size = (*leading[axis], *leaf.shape)
                blocks.append((leaf.dtype, size, offset))
                offset += aligned(leaf.row_bytes * (1 if axis is Axis.ONE else size[0]))
            found = Blocks(offset, tuple(blocks))
            if len(self._blocks) >= MOST_BLOCKS:
                self._blocks.clear()
            self._blocks[rows, items] = found
        return found

    def payload_bytes(self, rows: int, items: int) -> int:
        """Bytes of the leaf blocks."""
        return self.blocks(rows, items).size_bytes

    @cached_property
    def carries_records(self) -> bool:
        """Whether there are records in the message, and not only indices, masks or text."""
        return bool(self.part("data")[0])

    @cached_property
    def _blocks(self) -> dict[tuple[int, int], Blocks]:
        return {}

    @cached_property
    def _records(self) -> dict[str, tuple[tuple[Key, ...], tuple[int, ...], Spec]]:
        return {}

    @cached_property
    def _parts(self) -> dict[str, tuple[tuple[Key, ...], tuple[int, ...]]]:
        return {}

    @classmethod
    def from_text(cls, text: bytes) -> Layout:
        """The layout whose text was received; every part is checked, since it comes from outside.

        Raises:
            LayoutError: the text is no layout.
        """
        try:
            entries, static = json.loads(text)
            if not isinstance(static, str) or not isinstance(json.loads(static), dict) or len(entries) > MOST_LEAVES:
                raise ValueError("static part or number of leaves")
            leaves = tuple(_leaf(key, dtype, shape) for key, dtype, shape, _ in entries)
            axes = tuple(Axis(axis) for *_, axis in entries)
            if len({leaf.key for leaf in leaves}) != len(leaves):
                raise ValueError("a key comes twice")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise LayoutError(f"layout must be a list of leaves and a static part; {error}") from error
        return cls(leaves, axes, static)


@dataclass
class LayoutTable:
    """The layouts one end knows, by digest; of those that were added, the least recently used one is forgotten first."""

    limit: int = 256
    always: Mapping[int, Layout] = field(default_factory=dict)
    _known: OrderedDict[int, Layout] = field(default_factory=OrderedDict)

    def add(self, layout: Layout) -> None:
        """Remembers `layout`."""
        if layout.digest in self.always:
            return
        self._known[layout.digest] = layout
        self._known.move_to_end(layout.digest)
        while len(self._known) > self.limit:
            self._known.popitem(last=False)

    def get(self, digest: int) -> Layout | None:
        """The layout of that name, or None if it was never seen or is forgotten."""
        layout = self._known.get(digest)
        if layout is not None:
            with contextlib.suppress(KeyError):  # another thread's `add` has just forgotten it; ours is still good
                self._known.move_to_end(digest)
            return layout
        return self.always.get(digest)

    def __len__(self) -> int:
        return len(self._known)


def _leaf(key: Any, dtype: Any, shape: Any) -> Leaf:
    if not (isinstance(key, list) and all(isinstance(part, str) for part in key)):
        raise ValueError(f"key {key!r}")
    if not (isinstance(shape, list) and len(shape) <= MOST_DIMENSIONS):
        raise ValueError(f"shape {shape!r}")
    size = 1
    for extent in shape:
        if isinstance(extent, bool) or not isinstance(extent, int) or not 0 <= extent <= LARGEST_EXTENT:
            raise ValueError(f"shape {shape!r}")
        size *= extent
        if size > LARGEST_EXTENT:
            raise ValueError(f"shape {shape!r}")
    return Leaf(tuple(key), DTYPES[dtype], tuple(shape))


def _names(keys: tuple[Key, ...]) -> list[str]:
    return [key_name(key) or "data" for key in keys]
