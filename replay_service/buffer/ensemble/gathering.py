"""Parts of a batch that can be gathered straight into it, because the buffers store the same columns and change nothing on the way out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from replay_service.arena import Arena
from replay_service.buffer.pick import Pick
from replay_service.buffer.replay_buffer import ReplayBuffer
from replay_service.payload import payload_bytes, views
from replay_service.specs import narrowed
from replay_service.structure import build

__all__ = ["Gathered", "gathered"]


@dataclass(frozen=True, slots=True)
class Gathered:
    """A batch whose parts lie in it already; what is said of them is not yet."""

    batch: Any


def gathered(draws: Sequence[tuple[ReplayBuffer, Pick]], arena: Arena, stacks: bool) -> Gathered | None:
    """The records of several draws in one batch, copied once: stacked `[draws, rows, …]`, or one draw behind the other `[rows, …]`.

    None where each part has to be made by its buffer: where one collates or transforms, where layouts differ, where not the same is said of
    all parts, or where parts that are to be stacked differ in size. The caller has held the locks since the draws.
    """
    (first, drawn), *others = draws
    leaves, spec = first.dense_leaves(), first.storage.spec()
    rows = [pick.records.numel() for _, pick in draws]
    if leaves is None or spec is None or (stacks and len(set(rows)) > 1):
        return None
    for buffer, pick in others:
        if pick.info.keys() != drawn.info.keys() or buffer.storage.spec() != spec or buffer.dense_leaves() != leaves:
            return None
    total = sum(rows)
    outs = views(arena.take(payload_bytes(leaves, total)), leaves, total)
    start = 0
    for (buffer, pick), count in zip(draws, rows, strict=True):
        buffer.storage.read_into(pick.records, [out[start : start + count] for out in outs])
        start += count
    if not stacks:
        return Gathered(build(spec, outs, (total,)))
    shape = (len(rows), rows[0])
    return Gathered(build(narrowed(spec, -1), [out.view(*shape, *out.shape[1:]) for out in outs], shape))
