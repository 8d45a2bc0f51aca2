"""The newest steps of what is still being written, and how they become the last of their episodes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from replay_service.buffer.replay_buffer import ReplayBuffer
from replay_service.errors import LayoutError, key_name
from replay_service.specs import Key

__all__ = ["Ending", "endings_of"]


@dataclass(frozen=True, slots=True)
class Ending:
    """New flags of the newest step of every lane of one buffer.

    Attributes:
        index: the records, int64 `[1]`, or with lanes coordinates `[lanes, ndim]`.
        flags: by entry bool `[lanes, *shape]`; nothing where all of them ended already.
    """

    index: Tensor
    flags: dict[Key, Tensor]

    def write(self, buffer: ReplayBuffer) -> None:
        """Writes the flags, and tells sampler and sample unit."""
        for key, values in self.flags.items():
            buffer.set_at_(key, values, self.index)


def endings_of(
    buffer: ReplayBuffer, place: int, end_key: Key, terminated_key: Key | None, truncated_key: Key | None
) -> Ending | None:
    """How the open streams of a buffer end; None if it holds no step, or nobody can write to it.

    The newest step of a lane that is no end yet becomes one: `end_key` is set, and `truncated_key`, where records have that entry and
    none under `terminated_key` says otherwise.

    Raises:
        TypeError: records have no columns.
        ValueError: the writer goes around no ring, so that it cannot be told which step is the newest.
        KeyError: there is no entry `end_key`.
        LayoutError: an entry that holds no flags.
    """
    storage, writer = buffer.storage, buffer.writer
    try:
        writer.require_writable()
    except RuntimeError:
        return None
    cursor = getattr(writer, "cursor", None)
    if cursor is None or buffer.sampler.consumes:
        part = writer if cursor is None else buffer.sampler
        raise ValueError(
            f"rbs[{place}] must be written step after step for its streams to have ends; got {type(part).__name__}"
        )
    if not storage.filled:
        return None
    if not storage.columnar:
        raise TypeError(f"rbs[{place}] must have a columnar storage; got {type(storage).__name__}")
    slot = torch.tensor([(cursor - 1) % storage.filled], device="cpu")
    stored = {leaf.key for leaf in storage.leaves() or ()}

    def flags_at(key: Key) -> Tensor:
        column = storage.column(key)
        if column.dtype != torch.bool:
            raise LayoutError(f"{key_name(key)} must hold flags; got {str(column.dtype).removeprefix('torch.')}")
        return column[slot.to(column.device)].flatten(0, storage.ndim - 1)

    done = flags_at(end_key)
    flags: dict[Key, Tensor] = {}
    if not bool(done.all()):
        flags[end_key] = torch.ones_like(done)
        if truncated_key in stored and truncated_key is not None:
            cut = ~done.flatten(1).all(1)
            if terminated_key in stored and terminated_key is not None:
                cut &= ~flags_at(terminated_key).flatten(1).any(1)
            truncated = flags_at(truncated_key)
            flags[truncated_key] = truncated | cut.view(-1, *[1] * (truncated.ndim - 1))
    return Ending(slot if storage.ndim == 1 else storage.all_cells(slot), flags)
