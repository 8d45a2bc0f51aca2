"""From a reply to what a caller gets: the tensors stay views of the reply's buffer."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDict
from torch import Tensor

from replay_service.info import merge_info
from replay_service.specs import narrowed
from replay_service.structure import build
from replay_service.wire.message import Message

__all__ = ["decode_records", "decode_sample", "decode_trajectories"]


def decode_sample(reply: Message, return_info: bool) -> Any:
    """The sampled data, or `(data, info)`."""
    if reply.objects is not None:
        return reply.objects if return_info else reply.objects[0]
    rows = reply.records()
    data = rows.build()
    info: dict[Any, Any] = {}
    for name, kind in reply.statics["info"]:  # nested names are lists in JSON
        parts = (name,) if isinstance(name, str) else tuple(name)
        if kind == "part":
            value = reply.tensor("info", *parts)
            info.setdefault(parts[0], TensorDict(batch_size=value.shape))[parts[1]] = value
            continue
        info[name if isinstance(name, str) else parts] = _info_value(reply.tensor("info", *parts), kind)
    if reply.statics["merges"] and not reply.statics["finished"] and hasattr(data, "batch_size"):
        merge_info(data, info)
    return (data, info) if return_info else data


def decode_records(reply: Message) -> Any:
    """Records read by index."""
    if reply.objects is not None:
        return reply.objects[0]
    rows = reply.records()
    if reply.statics["single"]:
        return build(narrowed(rows.spec, 1), [tensor[0] for tensor in rows.tensors], ())
    return rows.build()


def decode_trajectories(reply: Message) -> list[Any]:
    """The trajectories that a query found, as views of the reply."""
    if reply.objects is not None:
        return list(reply.objects[0])
    if not reply.tensors:
        return []
    return list(reply.records().build().split(reply.tensor("lengths").tolist()))


def _info_value(tensor: Tensor, kind: str) -> Any:
    if kind == "tuple":
        return tuple(tensor.unbind(1))
    return tensor.item() if kind == "number" else tensor
