"""Runs of neighbouring steps in a batch: where the trajectories, slices and windows that it is made of begin and end."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from replay_service.buffer.markers import END_KEYS, ID_KEYS
from replay_service.buffer.samplers.slices import MASK_KEY
from replay_service.buffer.trajectory import NEXT, known_entries
from replay_service.specs import Key
from replay_service.transforms.transform import entry

__all__ = ["Runs"]

WINDOW_KEY: Key = ("sequence_id",)
"""Which window of a `Sequence` a record belongs to."""

VALID_KEYS: tuple[Key, ...] = (MASK_KEY, ("validity_mask",))
"""Which steps are real and not padding."""


class Runs:
    """The runs that the `n` steps of a batch make up, in their order.

    Attributes:
        first: int64 `[n]`, the first step of the run that each step is in.
        last: int64 `[n]`, its last one.

    Args:
        ends: bool `[n]`, True at the last step of each run; the last step of the batch ends one in any case.
    """

    def __init__(self, ends: Tensor) -> None:
        steps = torch.arange(ends.numel(), device=ends.device)
        ends = ends.clone()
        ends[-1:] = True
        begins = torch.cat([torch.ones_like(ends[:1]), ends[:-1]])
        self.first: Tensor = torch.where(begins, steps, 0).cummax(0).values if ends.numel() else steps
        last = torch.where(ends, steps, ends.numel() - 1)
        self.last: Tensor = last.flip(0).cummin(0).values.flip(0) if ends.numel() else steps

    @classmethod
    def of(cls, data: TensorDictBase, done_keys: list[Key] | None = None) -> Runs:
        """The runs of a batch `[T]`, or `[B, T]` of `B` lines whose steps are numbered one line after the other.

        A run ends at an end flag, where the trajectory id or the window changes, where padding begins or ends, and at the end of a line.

        Args:
            data: the batch.
            done_keys: the end flags; None: `done`, `terminated` and `truncated` under `next`, as far as they are there; without a
                `next`, at the root.

        Raises:
            KeyError: nothing says where runs end, or a given key is missing.
        """
        batch = data.batch_size
        ends = torch.zeros(batch, dtype=torch.bool, device=data.device)
        flags = _end_flags(data, done_keys)
        marks = [data.get(key, None) for key in (*ID_KEYS, WINDOW_KEY)]
        changing = [mark for mark in marks if isinstance(mark, Tensor)]
        if not flags and not changing and len(batch) < 2:
            raise KeyError(
                f"done_keys (None) must name what says where trajectories end: there is none of "
                f"{[f'next.{name}' for name in END_KEYS]} and no trajectory id; got {known_entries(data)}"
            )
        if not ends.numel():
            return cls(ends.reshape(-1))
        for flag in flags:
            ends |= flag.reshape(*batch, -1).bool().any(-1)
        for key in VALID_KEYS:
            valid = data.get(key, None)
            if isinstance(valid, Tensor):
                changing.append(valid)
        for mark in changing:
            told = mark.reshape(*batch, -1)
            ends[..., :-1] |= (told[..., 1:, :] != told[..., :-1, :]).any(-1)
        ends[..., -1:] = True
        return cls(ends.reshape(-1))


def _end_flags(data: TensorDictBase, done_keys: list[Key] | None) -> list[Any]:
    if done_keys is not None:
        return [entry(data, key) for key in done_keys]
    prefix: Key = () if data.get(NEXT, None) is None else (NEXT,)
    flags = [data.get((*prefix, name), None) for name in END_KEYS]
    return [flag for flag in flags if isinstance(flag, Tensor)]
