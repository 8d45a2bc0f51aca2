"""From the arguments of an episodic buffer's call to the request that carries them, and from the reply to its result."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from replay_service.arguments import numbers_of
from replay_service.episodic.batch import Batch
from replay_service.episodic.draws import checked_size
from replay_service.episodic.incoming import ids_of
from replay_service.episodic.returns import check_n_step
from replay_service.episodic.travel import Skeleton, apart, together
from replay_service.errors import LayoutError
from replay_service.specs import Key
from replay_service.wire.indices import encode_index
from replay_service.wire.message import Message, compose, static_text
from replay_service.wire.verbs import Verb

__all__ = [
    "Added",
    "added",
    "array",
    "drawn",
    "indexed",
    "sample_steps_request",
    "size_arguments",
    "steps",
    "steps_request",
    "value",
    "values_request",
]

MOST_STEPS = 1 << 48  # more than any buffer has; a larger number would not fit a header

Added = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]


def steps_request(batch: Any, buffer_ids: Any) -> Message:
    """The request that adds steps; as objects if they hold some.

    Raises:
        TypeError: ids that are not integers.
    """
    given = batch if isinstance(batch, Batch) else Batch(batch)
    ids = None if buffer_ids is None else ids_of(buffer_ids)
    try:
        skeleton, entries = apart(given)
    except LayoutError as error:
        return Message(Verb.ADD_STEPS, objects=(given, ids), obstacle=str(error).partition(" must ")[0])
    named: list[tuple[Key, Tensor]] = [(("data", *key), tensor) for key, tensor in entries]
    if ids is not None:
        named.append((("buffer_ids",), torch.from_numpy(ids)))
    return compose(Verb.ADD_STEPS, named, static=_batch_static(skeleton), rows=None if ids is None else ids.size)


def added(reply: Message) -> Added:
    """What `add` returns."""
    slots, returns, lengths, starts = (array(reply, name) for name in ("index", "returns", "lengths", "starts"))
    return slots, returns, lengths, starts


def size_arguments(batch_size: int | None) -> tuple[int, int]:
    """A number of steps, which may be None, as integers; `TypeError` for something that is neither."""
    size = checked_size(batch_size)
    return (0, 0) if size is None else (max(-1, min(size, MOST_STEPS)), 1)


def sample_steps_request(batch_size: int | None, n_step: int | None, gamma: float) -> Message:
    """The request for a sample of steps."""
    size = size_arguments(batch_size)
    if n_step is None:
        return Message(Verb.SAMPLE_STEPS, arguments=(*size, 0, 0))
    check_n_step(n_step, gamma, "n_step")
    return values_request(Verb.SAMPLE_STEPS, (*size, min(int(n_step), MOST_STEPS), 1), gamma=float(gamma))


def drawn(reply: Message) -> tuple[Batch, NDArray[np.int64]]:
    """What `sample` returns."""
    return steps(reply), reply.objects[1] if reply.objects is not None else array(reply, "index")


def steps(reply: Message) -> Batch:
    """The batch that a reply carries."""
    batch: Batch = reply.objects[0] if reply.objects is not None else _batch(reply)
    return batch


def indexed(verb: Verb, index: Any, statics: Mapping[str, Any] | None = None) -> Message:
    """A request about the steps at `index`."""
    arguments, entries = encode_index(index)
    return compose(verb, entries, static=static_text(statics) if statics else "{}", arguments=arguments)


def values_request(verb: Verb, arguments: tuple[int, ...] = (), **values: Any) -> Message:
    """A request with numbers and arrays of them, by name; None is left out.

    Raises:
        TypeError: something that is no number or array of numbers.
    """
    entries: list[tuple[Key, Tensor]] = []
    for name, given in values.items():
        if given is None:
            continue
        tensor = numbers_of(name, given, None if isinstance(given, np.ndarray) else torch.float64)
        # The service takes them as arrays, which know no bfloat16.
        entries.append(((name,), tensor.float() if tensor.dtype == torch.bfloat16 else tensor))
    return compose(verb, entries, arguments=arguments)


def value(reply: Message, name: str) -> Any:
    """The array, tensor or `Batch` that a reply carries under `name`."""
    return reply.objects[0] if reply.objects is not None else _batch(reply)[name]


def array(reply: Message, name: str) -> Any:
    """An array of a reply; a number if it has no dimension."""
    found = reply.tensor(name).numpy(force=True)
    return found if found.ndim else found[()]


def _batch(reply: Message) -> Batch:
    _, places = reply.layout.part("data")
    return together(reply.statics["batch"], [reply.tensors[place] for place in places])


@lru_cache(maxsize=256)
def _batch_static(skeleton: Skeleton) -> str:
    return static_text({"batch": skeleton})
