"""Replies that carry steps: gathered straight into the memory that is sent, or objects where steps hold some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from replay_service.episodic.plan import Plan
from replay_service.episodic.travel import Skeleton, apart, together
from replay_service.errors import LayoutError
from replay_service.specs import Key
from replay_service.structure import Leaf
from replay_service.wire.layout import Axis
from replay_service.wire.message import Message, compose, layout_for, static_text
from replay_service.wire.verbs import Verb

__all__ = ["GatheredSteps", "batch_of", "numbers", "value_reply"]

Ints = NDArray[np.int64]


class GatheredSteps:
    """Steps that are read only once their reply has memory; the caller holds the buffer's lock for both.

    Args:
        verb: the request's verb.
        plan: draws or looks up steps: what to read, and the slots that are told with it, if any.
    """

    def __init__(self, verb: Verb, plan: Callable[[], tuple[Plan, Ints | None]]) -> None:
        self._verb = verb
        self._make_plan = plan
        self._plan = Plan()
        self._slots: Ints | None = None

    def draw(self) -> Message:
        """Looks for the steps, and describes the reply that they will fill; a finished one if they hold objects."""
        self._plan, self._slots = self._make_plan()
        described = self._plan.leaves()
        if described is None:
            objects = (self._plan.build(), self._slots)
            self._plan, self._slots = Plan(), None
            return Message(self._verb, objects=objects)
        skeleton, found = described
        leaves = [(Leaf(("data", *leaf.key), leaf.dtype, leaf.shape)) for leaf in found]
        if self._slots is not None:
            leaves.append(Leaf(("index",), torch.int64, self._slots.shape))
        rows = max((leaf.shape[0] for leaf in leaves if leaf.shape), default=0)
        parts, axes = [], []
        for leaf in leaves:
            shared = bool(leaf.shape) and leaf.shape[0] == rows
            parts.append(Leaf(leaf.key, leaf.dtype, leaf.shape[1:]) if shared else leaf)
            axes.append(Axis.ROWS if shared else Axis.ONE)
        return Message(self._verb, layout_for(tuple(parts), tuple(axes), batch_static(skeleton)), rows=rows)

    def fill(self, views: Sequence[Tensor]) -> None:
        """Gathers the steps into the reply's own tensors."""
        if self._slots is not None:
            *views, index = views
            index.copy_(torch.from_numpy(self._slots))
        self._plan.fill(views)


@lru_cache(maxsize=256)
def batch_static(skeleton: Skeleton) -> str:
    """The static part of a message with a batch."""
    return static_text({"batch": skeleton})


def batch_of(message: Message, name: str = "data") -> Any:
    """The batch whose leaves lie below `name`.

    Raises:
        LayoutError: the message says something else of its leaves. Only a sender that checks nothing does that.
    """
    keys, places = message.layout.part(name)
    skeleton: Any = message.statics.get("batch")
    try:
        if tuple(_keys(skeleton, ())) != keys:
            raise ValueError(f"other leaves than {keys}")
        return together(skeleton, [message.tensors[place] for place in places])
    except (TypeError, ValueError, RecursionError) as error:
        raise LayoutError(f"batch must say how the leaves of the message are nested; {error}") from error


def value_reply(verb: Verb, value: Any) -> Message:
    """The reply that carries an array, a tensor or a `Batch`; as an object if it is no numbers."""
    try:
        skeleton, entries = apart({"value": value})
    except LayoutError:
        return Message(verb, objects=(value,))
    return compose(verb, [(("data", *key), tensor) for key, tensor in entries], static=batch_static(skeleton))


def numbers(verb: Verb, **arrays: Any) -> Message:
    """The reply that carries arrays of numbers, by name."""
    entries: list[tuple[Key, Tensor]] = []
    for name, array in arrays.items():
        entries.append(((name,), torch.from_numpy(np.array(array))))
    return compose(verb, entries)


def _keys(skeleton: Any, prefix: Key) -> list[Key]:
    found: list[Key] = []
    for name, kind in skeleton:
        found += [(*prefix, name)] if isinstance(kind, str) else _keys(kind, (*prefix, name))
    return found
