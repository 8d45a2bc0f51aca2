"""Replies that carry records: gathered in place where the layout is fixed, taken apart where it is not, objects where nothing else fits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDictBase
from torch import Tensor

from replay_service.buffer.query import TrajectoryPredicate
from replay_service.buffer.replay_buffer import Pick, ReplayBuffer
from replay_service.buffer.trajectory import trajectory_spec
from replay_service.errors import LayoutError, key_name
from replay_service.service.telling import Told
from replay_service.sources import SOURCES, source_entries
from replay_service.specs import Key, Spec
from replay_service.structure import Leaf, flatten_rows, row_of
from replay_service.wire.layout import Axis
from replay_service.wire.message import Message, compose, layout_for, static_text, text_of
from replay_service.wire.verbs import Verb

__all__ = ["Gather", "records", "sampled", "trajectories"]


class Gather:
    """A sample that is drawn and read only once its reply has memory; the caller holds the buffer's lock for both.

    Args:
        verb: the request's verb.
        buffer: the buffer, whose records have a fixed layout.
        size: size of the draw, None for the buffer's.
        with_info: whether the sampler's info travels along.
        told: what the client knows of sources.
    """

    def __init__(
        self, verb: Verb, buffer: ReplayBuffer, size: int | None, with_info: bool, told: Told | None = None
    ) -> None:
        self._verb = verb
        self._buffer = buffer
        self._told = told or Told()
        self._size = size
        self._with_info = with_info
        self._pick: Pick | None = None
        self._info: list[Tensor] = []

    def draw(self) -> Message:
        """Draws the records and describes the reply that they will fill."""
        self._pick = pick = self._buffer.pick(self._size)
        rows = pick.records.numel()
        storage = self._buffer.storage
        stored, spec = storage.leaves() or (), storage.spec() or "t"
        leaves = [Leaf(("data", *leaf.key), leaf.dtype, leaf.shape) for leaf in stored]
        axes = [Axis.ROWS] * len(leaves)
        names: list[list[Any]] = []
        self._info = []
        if self._with_info:
            for name, kind, value in tensors_of(pick.info):
                aligned = value.ndim > 0 and value.shape[0] == rows
                leaves.append(
                    Leaf(("info", *_parts(name)), value.dtype, tuple(value.shape[1:] if aligned else value.shape))
                )
                axes.append(Axis.ROWS if aligned else Axis.ONE)
                names.append([name, kind])
                self._info.append(value)
        static = _sample_static(spec, names, self._buffer.merges_info)
        items = 0
        news, arguments = self._told.news(spec)
        for key, words in news:  # last, so that they do not come between records and info
            leaves.append(Leaf(key, words.dtype, ()))
            axes.append(Axis.ITEMS)
            self._info.append(words)
            items = words.numel()
        layout = layout_for(tuple(leaves), tuple(axes), static)
        return Message(self._verb, layout, rows=rows, items=items, arguments=arguments)

    def fill(self, views: Sequence[Tensor]) -> None:
        """Gathers the drawn records into the reply's own tensors."""
        if self._pick is None:
            raise RuntimeError("draw must be called before fill")
        stored = len(views) - len(self._info)
        self._buffer.storage.read_into(self._pick.records, views[:stored])
        for view, value in zip(views[stored:], self._info, strict=True):
            view.copy_(value)


def tensors_of(info: dict[Any, Any]) -> list[tuple[str | Key, str, Tensor]]:
    """Name, kind (`tensor`, `tuple`, `number`, `part` of a TensorDict) and tensor of every info entry.

    Raises:
        LayoutError: an entry is neither a tensor nor a number.
    """
    entries = []
    for name, value in info.items():
        if isinstance(value, Tensor):
            entries.append((name, "tensor", value))
        elif isinstance(value, tuple) and all(isinstance(part, Tensor) for part in value):
            entries.append((name, "tuple", torch.stack(value, 1)))
        elif isinstance(value, TensorDictBase):
            entries += [((str(name), str(part)), "part", value[part]) for part in value.keys()]  # noqa: SIM118
        elif isinstance(value, np.ndarray):
            entries.append((name, "tensor", torch.from_numpy(value)))
        elif isinstance(value, bool | int | float):
            entries.append((name, "number", torch.tensor(value, device="cpu")))
        else:
            raise LayoutError(f"info.{key_name(name)} must be a tensor or a number; got {type(value).__name__}")
    return entries


def _parts(name: str | Key) -> Key:
    """The name of an info entry as a key; nested ones stand for entries of the data."""
    return (name,) if isinstance(name, str) else name


def sampled(verb: Verb, data: Any, info: dict[str, Any], merges: bool, told: Told | None = None) -> Message:
    """The reply that carries a finished sample; as an object if it is no dense tensor."""
    told = told or Told()
    try:
        rows = flatten_rows(data)
        named = tensors_of(info)
    except LayoutError:
        return Message(verb, objects=(data, info), arguments=told.news("t")[1])
    static = _sample_static(rows.spec, [[name, kind] for name, kind, _ in named], merges, finished=True)
    entries: list[tuple[Key, Tensor]] = [
        (("data", *key), tensor) for key, tensor in zip(rows.keys, rows.tensors, strict=True)
    ]
    entries += [(("info", *_parts(name)), tensor) for name, _, tensor in named]
    news, arguments = told.news(rows.spec)
    return compose(verb, [*entries, *news], static=static, rows=rows.count, arguments=arguments)


def records(verb: Verb, data: Any, single: bool, left: int = 0) -> Message:
    """The reply that carries records read by index; as an object if they are no dense tensors. `left` transforms are the client's."""
    if isinstance(data, ReplayBuffer):
        raise TypeError(
            "index must name records, as samples carry it (sample['index']); it names one of the buffers, and these stay with the service"
        )
    try:
        rows = row_of(data) if single else flatten_rows(data)
    except LayoutError:
        return Message(verb, objects=(data,), arguments=(left, SOURCES.token))
    entries: list[tuple[Key, Tensor]] = [
        (("data", *key), tensor) for key, tensor in zip(rows.keys, rows.tensors, strict=True)
    ]
    entries += source_entries(rows.spec, rows.keys, rows.tensors)
    static = static_text({"spec": rows.spec, "single": single})
    return compose(verb, entries, static=static, rows=rows.count, arguments=(left, SOURCES.token))


def trajectories(request: Message, buffer: ReplayBuffer, allow_callables: bool) -> Message:
    """The reply to a query: all steps of the matches one after the other, and `lengths`; empty without a match.

    Raises:
        TypeError: the predicate is a function, and the service runs none.
    """
    asked = json.loads(text_of(request))
    if request.objects is not None:
        if not allow_callables:
            raise TypeError(
                "predicate (a function) must be made of traj: this service runs no code of its clients; write the condition with traj, "
                "or start the service with allow_callables=True"
            )
        predicate = request.objects[0]
    else:
        predicate = None if asked["predicate"] is None else TrajectoryPredicate.from_json(asked["predicate"])
    key = asked["trajectory_key"]
    found = buffer.matches(predicate, trajectory_key=None if key is None else tuple(key))
    if not found.lengths:
        return Message(request.verb)
    try:
        rows = flatten_rows(found.steps)
    except LayoutError:
        return Message(request.verb, objects=(found.split(),))
    entries: list[tuple[Key, Tensor]] = [
        (("data", "data", *name), tensor) for name, tensor in zip(rows.keys, rows.tensors, strict=True)
    ]
    entries.append((("lengths",), torch.tensor(found.lengths, device="cpu")))
    entries += source_entries(rows.spec, rows.keys, rows.tensors)
    static = static_text({"spec": trajectory_spec(rows.spec)})
    return compose(request.verb, entries, static=static, rows=rows.count)


def _sample_static(spec: Spec, names: list[list[Any]], merges: bool, finished: bool = False) -> str:
    key = (spec, tuple((name, kind) for name, kind in names), merges, finished)
    text = STATICS.get(key)
    if text is None:
        if len(STATICS) >= MOST_STATICS:
            STATICS.clear()
        text = static_text({"spec": spec, "info": names, "merges": merges, "finished": finished})
        STATICS[key] = text
    return text


MOST_STATICS = 256
STATICS: dict[Any, str] = {}
"""Static texts by what they say, so that the hot path writes no JSON."""
