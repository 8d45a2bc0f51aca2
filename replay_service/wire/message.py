"""Messages: a verb with named tensors, as the two ends see it before and after packing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from replay_service.specs import Key, Spec, spec_from_json
from replay_service.structure import Leaf, Rows
from replay_service.wire.layout import Axis, Layout
from replay_service.wire.verbs import Verb

__all__ = ["ARGUMENTS", "EMPTY", "TEXT", "Message", "compose", "layout_for", "static_text", "text_of"]

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

    @property
    def statics(self) -> dict[str, Any]:
        """The static part of the layout."""
        return self.layout.statics

    def argument(self, place: int, default: int = 0) -> int:
        """Integer number `place`."""
        return self.arguments[place] if place < len(self.arguments) else default

    def tensor(self, *key: str) -> Tensor:
        """The tensor of that key; `KeyError` if the message has none."""
        for leaf, tensor in zip(self.layout.leaves, self.tensors, strict=True):
            if leaf.key == key:
                return tensor
        raise KeyError(f"key ({'.'.join(key)}) must be in the message; got {[leaf.key for leaf in self.layout.leaves]}")

    def optional(self, *key: str) -> Tensor | None:
        """The tensor of that key, or None."""
        return self.tensor(*key) if any(leaf.key == key for leaf in self.layout.leaves) else None

    def part(self, name: str) -> tuple[list[Key], list[Tensor]]:
        """Keys (without `name`) and tensors of the leaves below `name`."""
        keys, tensors = [], []
        for leaf, tensor in zip(self.layout.leaves, self.tensors, strict=True):
            if leaf.key[0] == name:
                keys.append(leaf.key[1:])
                tensors.append(tensor)
        return keys, tensors

    def records(self, name: str = "data") -> Rows:
        """The leaves below `name` as rows."""
        keys, tensors = self.part(name)
        spec: Spec = spec_from_json(self.statics["spec"])
        return Rows(keys, tensors, spec, tensors[0].shape[0] if tensors else 0)


def static_text(statics: Mapping[str, Any]) -> str:
    """The static part as canonical JSON text."""
    return json.dumps(statics, separators=(",", ":"))


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
    leaves: list[Leaf] = []
    axes: list[Axis] = []
    tensors: list[Tensor] = []
    items = -1
    for key, tensor in entries:
        leading = tensor.shape[0] if tensor.ndim else -1
        if rows is None:
            rows = max(leading, 0)
        if leading == rows:
            axis, shape = Axis.ROWS, tensor.shape[1:]
        elif leading >= 0 and items in (-1, leading):
            axis, shape, items = Axis.ITEMS, tensor.shape[1:], leading
        else:
            axis, shape = Axis.ONE, tensor.shape
        leaves.append(Leaf(key, tensor.dtype, tuple(shape)))
        axes.append(axis)
        tensors.append(tensor)
    layout = layout_for(tuple(leaves), tuple(axes), static)
    return Message(verb, layout, tensors, rows or 0, max(items, 0), arguments)


def text_of(message: Message) -> str:
    """The text that a message carries in its leaf `text`."""
    return bytes(message.tensor("text").numpy()).decode("utf-8", "replace")
