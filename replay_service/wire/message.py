"""Messages: a verb with named tensors, as the two ends see it before and after packing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from replay_service.errors import LayoutError
from replay_service.specs import Key, Spec
from replay_service.structure import Leaf, Rows
from replay_service.wire.layout import Axis, Layout
from replay_service.wire.verbs import Verb

__all__ = ["ARGUMENTS", "EMPTY", "TEXT", "Message", "compose", "layout_for", "spec_static", "static_text", "text_of"]

EMPTY = Layout((), ())
TEXT = Layout((Leaf(("text",), torch.uint8, ()),), (Axis.ITEMS,))
"""The layout of texts: errors and snapshots. Every end knows it and `EMPTY` from the start."""

ARGUMENTS = 6
"""Integers that a message carries in its header."""


@dataclass(slots=True)
class Message:
    """A request, or the reply to one.

    Attributes:
        verb: what is asked for.
        layout: what `tensors` look like.
        tensors: one per leaf of the layout.
        rows, items: the two leading sizes.
        arguments: up to `ARGUMENTS` integers, their meaning a matter of the verb.
        status: 0 in requests and good replies, else an error code (`wire.failures`).
        request_id: numbers the requests of one conversation.
        known_reply: digest of the reply layout that the sender can read without its text.
        objects: what is no tensor; only Ray objects carry it.
        flat: the payload, uint8 `[bytes]`, where it lies apart from the header: on a device.
        obstacle: the part of `objects` that is no dense tensor, by name. Stays at this end.
        refusal: what is wrong with `objects` as rows, if it is not that they are no tensors. Stays at this end.
    """

    verb: Verb
    layout: Layout = field(default_factory=lambda: EMPTY)
    tensors: list[Tensor] = field(default_factory=list)
    rows: int = 0
    items: int = 0
    arguments: tuple[int, ...] = ()
    status: int = 0
    request_id: int = 0
    known_reply: int = 0
    objects: Any = None
    flat: Tensor | None = None
    obstacle: str = ""
    refusal: LayoutError | None = None

    @property
    def statics(self) -> dict[str, Any]:
        """The static part of the layout."""
        return self.layout.statics

    def argument(self, place: int, default: int = 0) -> int:
        """Integer number `place`."""
        return self.arguments[place] if place < len(self.arguments) else default

    def tensor(self, *key: str) -> Tensor:
        """The tensor of that key; `KeyError` if the message has none."""
        place = self.layout.places.get(key)
        if place is not None:
            return self.tensors[place]
        raise KeyError(f"key ({'.'.join(key)}) must be in the message; got {[leaf.key for leaf in self.layout.leaves]}")

    def optional(self, *key: str) -> Tensor | None:
        """The tensor of that key, or None."""
        place = self.layout.places.get(key)
        return None if place is None else self.tensors[place]

    def records(self, name: str = "data") -> Rows:
        """The leaves below `name` as rows; `LayoutError` if they are none."""
        keys, places, spec = self.layout.records(name)
        tensors = [self.tensors[place] for place in places]
        return Rows(list(keys), tensors, spec, tensors[0].shape[0])


def static_text(statics: Mapping[str, Any]) -> str:
    """The static part as canonical JSON text."""
    return json.dumps(statics, separators=(",", ":"))


@lru_cache(maxsize=1024)
def spec_static(spec: Spec) -> str:
    """The static part of a message that only says how its records are put together."""
    return static_text({"spec": spec})


@lru_cache(maxsize=1024)
def layout_for(leaves: tuple[Leaf, ...], axes: tuple[Axis, ...], static: str) -> Layout:
    """The layout of these parts; the same object for the same parts, so that its digest is computed once."""
    return Layout(leaves, axes, static)


def compose(
    verb: Verb,
    entries: Iterable[tuple[Key, Tensor]],
    *,
    static: str = "{}",
    rows: int | None = None,
    arguments: tuple[int, ...] = (),
) -> Message:
    """A message of named tensors: those whose leading size is `rows` share it, the first other vector gives `items`, the rest stand alone.

    `rows=None` takes the leading size of the first tensor.
    """
    named = list(entries)
    tensors = [tensor for _, tensor in named]
    described = tuple([(key, tensor.dtype, tensor.shape) for key, tensor in named])
    layout, count, items = _layout_of(described, static, rows)
    return Message(verb, layout, tensors, count, items, arguments)


@lru_cache(maxsize=1024)
def _layout_of(
    described: tuple[tuple[Key, torch.dtype, torch.Size], ...], static: str, rows: int | None
) -> tuple[Layout, int, int]:
    """Layout, rows and items of tensors of these keys, dtypes and sizes."""
    leaves: list[Leaf] = []
    axes: list[Axis] = []
    items = -1
    for key, dtype, size in described:
        leading = size[0] if len(size) else -1
        if rows is None:
            rows = max(leading, 0)
        if leading == rows:
            axis, shape = Axis.ROWS, size[1:]
        elif leading >= 0 and items in (-1, leading):
            axis, shape, items = Axis.ITEMS, size[1:], leading
        else:
            axis, shape = Axis.ONE, size
        leaves.append(Leaf(key, dtype, tuple(shape)))
        axes.append(axis)
    return layout_for(tuple(leaves), tuple(axes), static), rows or 0, max(items, 0)


def text_of(message: Message) -> str:
    """The text that a message carries in its leaf `text`."""
    return bytes(message.tensor("text").cpu().numpy()).decode("utf-8", "replace")
