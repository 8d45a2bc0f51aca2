"""From the arguments of a call to the request that carries them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase, is_tensor_collection
from torch import Tensor

from replay_service.arguments import entry_key, flag_of, numbers_of, positive_integer
from replay_service.errors import LayoutError
from replay_service.sources import source_entries
from replay_service.specs import Key, Spec
from replay_service.structure import Rows, flatten_rows, row_of
from replay_service.wire.indices import record_entries
from replay_service.wire.message import TEXT, Message, compose, spec_static, static_text
from replay_service.wire.verbs import Verb

__all__ = [
    "end_arguments",
    "extend_request",
    "object_request",
    "put_objects",
    "query_request",
    "records_request",
    "sample_request",
    "update_request",
]

LARGEST_BATCH = (1 << 63) - 1
"""What a header can say; the service has a limit of its own."""


def extend_request(data: Any, update_priority: bool | None) -> Message:
    """The request that appends a batch; as an object if it is no dense tensor, nor a list of records that look alike."""
    arguments = (-1 if update_priority is None else int(flag_of("update_priority", update_priority)),)
    if type(data) is list and any(map(_is_record, data)):
        rows = _listed_rows(data)
        if rows is not None:
            return records_request(Verb.EXTEND, rows, (*arguments, 1))
        return object_request(
            Verb.EXTEND, data, LayoutError("data (a list) must hold records that look alike"), arguments
        )
    try:
        return records_request(Verb.EXTEND, flatten_rows(data), arguments)
    except LayoutError as error:
        return object_request(Verb.EXTEND, data, error, arguments)


def _is_record(value: Any) -> bool:
    """Whether a tensor or TensorDict has no dimension of rows, so that a list of such can only be one of records."""
    return isinstance(value, Tensor | TensorDictBase) and value.ndim == 0


def _listed_rows(data: list[Any]) -> Rows | None:
    """The records of a list as rows; None unless they are all tensors or TensorDicts of one layout."""
    if any(type(record) not in (Tensor, TensorDict) or record.ndim for record in data):
        return None
    try:
        records = [row_of(record) for record in data]
    except LayoutError:
        return None
    first = records[0]
    layout = first.leaves()
    if not _is_plain(first.spec) or any(rows.spec != first.spec or rows.leaves() != layout for rows in records):
        return None
    tensors = [torch.cat(column) for column in zip(*(rows.tensors for rows in records), strict=True)]
    return Rows(first.keys, tensors, first.spec, len(records))


def _is_plain(spec: Spec) -> bool:
    """Whether a record is made of tensors and TensorDicts alone: no class that only its own process may know."""
    return isinstance(spec, str) or (spec[0] == "td" and all(_is_plain(part) for _, part in spec[-1]))


def object_request(verb: Verb, data: Any, error: LayoutError, arguments: tuple[int, ...] = ()) -> Message:
    """A request that carries `data` as an object, since `error` says why it is no dense rows; the service has the last word."""
    request = Message(verb, arguments=arguments)
    put_objects(request, data, error)
    return request


def put_objects(request: Message, data: Any, error: LayoutError) -> None:
    """Lets `data` go along with `request` as an object, since `error` says why it is no dense rows."""
    request.objects = (data,)
    request.obstacle = error.not_dense or str(error).partition(" must ")[0]
    request.refusal = None if error.not_dense else error


def records_request(verb: Verb, rows: Rows, arguments: tuple[int, ...] = ()) -> Message:
    """A request that carries records."""
    entries: list[tuple[Key, Tensor]] = [
        (("data", *key), tensor) for key, tensor in zip(rows.keys, rows.tensors, strict=True)
    ]
    entries += source_entries(rows.spec, rows.keys, rows.tensors)
    return compose(verb, entries, static=spec_static(rows.spec), rows=rows.count, arguments=arguments)


def sample_request(batch_size: int | None, return_info: bool) -> Message:
    """The request for a sample; `ValueError` or `TypeError` for a batch size that is none."""
    if batch_size is not None:
        batch_size = positive_integer(batch_size, "batch_size")
        if batch_size > LARGEST_BATCH:
            raise ValueError(f"batch_size ({batch_size}) must fit 64 bits")
    return Message(Verb.SAMPLE, arguments=(batch_size or 0, int(flag_of("return_info", return_info))))


def update_request(
    index: Any,
    generation: Any,
    patch: Any,
    version_key: str | Key | None = None,
    version: Any = None,
    require_newer: bool = False,
) -> Message:
    """The request for a conditional update.

    Raises:
        ValueError: `version_key` without `version`, or the other way round.
        LayoutError: `patch` is no batch of dense tensors.
    """
    if (version_key is None) != (version is None):
        raise ValueError("version_key and version must be given together")
    rows = flatten_rows(patch)
    statics: dict[str, Any] = {"spec": rows.spec}
    if version_key is not None:
        statics["version_key"] = list(entry_key("version_key", version_key))
    entries: list[tuple[Key, Tensor]] = [
        *record_entries(index),
        (("generation",), numbers_of("generation", generation).reshape(-1)),
    ]
    if version is not None:
        entries.append((("version",), numbers_of("version", version).reshape(-1)))
    entries += [(("patch", *key), tensor) for key, tensor in zip(rows.keys, rows.tensors, strict=True)]
    entries += source_entries(rows.spec, rows.keys, rows.tensors)
    arguments = (int(flag_of("require_newer", require_newer)),)
    return compose(Verb.UPDATE_IF_PRESENT, entries, static=static_text(statics), arguments=arguments)


def query_request(predicate: Any, trajectory_key: Any) -> Message:
    """The request for trajectories: the predicate as data; one that is code goes along as an object.

    Raises:
        TypeError: a predicate that is no truth about trajectories, or a key that is none.
    """
    kind = type(predicate)  # asked of the class, since an instance may take any attribute for the name of an entry
    tree: Any = None
    objects: tuple[Any, ...] | None = None
    if predicate is not None:
        if is_tensor_collection(predicate):
            raise TypeError(f"predicate ({predicate!r:.80}) must be made of traj, or a function; got {kind.__name__}")
        if kind.runs_code(predicate) if hasattr(kind, "runs_code") else not hasattr(kind, "to_json"):
            objects = (predicate,)
        else:
            tree = predicate.to_json()
    if objects is not None and not callable(predicate):
        raise TypeError(f"predicate ({predicate!r:.80}) must be made of traj, or a function; got {kind.__name__}")
    key = None if trajectory_key is None else entry_key("trajectory_key", trajectory_key)
    text = static_text({"predicate": tree, "trajectory_key": key}).encode()
    data = torch.from_numpy(np.frombuffer(text, np.uint8).copy())
    return Message(Verb.QUERY, TEXT, [data], items=data.numel(), objects=objects)


def end_arguments(end: int | None) -> tuple[int, int]:
    """The arguments that say where reading or writing from the front ends; `ValueError` for what is no number of slots."""
    if end is None:
        return (0, 0)
    if isinstance(end, bool) or not isinstance(end, int) or not -(1 << 63) <= end < 1 << 63:
        raise ValueError(f"end ({end!r}) must be a number of filled slots; got {type(end).__name__}")
    return (1, end)
