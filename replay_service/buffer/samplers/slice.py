"""Slices: runs of consecutive steps of one episode each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from replay_service.buffer.episode_marks import EpisodeMarks
from replay_service.buffer.episodes import EpisodeIndex, Slices
from replay_service.buffer.samplers.slices import EpisodeSampler, SliceFlags, SliceSize, Span
from replay_service.buffer.storages.base import Storage

__all__ = ["SliceSampler"]


class SliceSampler(EpisodeSampler):
    """Draws an episode, all equally likely, and a start in it, all equally likely; with replacement.

    Episodes are what `episodes` says: in a ring the newest step ends one, and one whose first steps are overwritten begins with its
    oldest stored step. A draw costs the same however much is stored. Slices come one after the other in a flat batch; `truncated_key`,
    `done` and `terminated` beside it and, where records have it, `init_key` say where they begin and end. In a TensorDict buffer these
    take the place of the stored entries.

    Args:
        num_slices: slices of a batch; the batch size must be divisible by it.
        slice_len: steps of a slice, likewise. Exactly one of the two.
        end_key, end_keys: entries with end flags; any of several ends an episode.
        traj_key: the entry with trajectory ids. With neither, ids where they are stored under a usual name, else the flags `done`,
            `terminated` and `truncated` under `next`.
        ends, trajectories: end flags or ids `[T(, *lanes)]` of all stored steps, for a buffer that is not written any more. In a full
            ring step 0 follows the last one.
        truncated_key: None leaves the end entries out.
        init_key: None leaves the entry at the start of slices as it is stored.
        strict_length: False lets episodes shorter than a slice be slices, so that batches may be smaller.
        pad_output: repeats the last step of such short slices; `("collector", "mask")` tells which steps are real.
        span: how far slices may hang over the (left, right) end of an episode, where they are cut off: True until one step is left, an
            integer by so many steps.
        step_key, cache_values, compile, use_gpu: accepted for drop-in use. Bounds are always kept, on the CPU.
        fragmented: refused: steps of one episode must lie one after the other.

    Raises:
        TypeError: both or neither of `num_slices` and `slice_len`, or several that mark ends.
        ValueError: a number out of range; `pad_output` with `strict_length`; `fragmented`.
    """

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        end_key: Any = None,
        end_keys: Sequence[Any] | None = None,
        traj_key: Any = None,
        step_key: Any = "step_count",
        fragmented: bool = False,
        ends: Any = None,
        trajectories: Any = None,
        cache_values: bool = False,
        truncated_key: Any = ("next", "truncated"),
        init_key: Any = "is_init",
        strict_length: bool = True,
        pad_output: bool = False,
        compile: bool | dict[str, Any] = False,
        span: Span = False,
        use_gpu: Any = False,
    ) -> None:
        if fragmented:
            raise ValueError(
                "fragmented (True) must be False: steps of an episode must lie one after the other; let each collector extend whole "
                "episodes, or give it a lane (ndim=2) or a buffer of its own"
            )
        super().__init__(
            SliceSize(num_slices, slice_len),
            EpisodeMarks(traj_key=traj_key, end_key=end_key, end_keys=end_keys, ends=ends, trajectories=trajectories),
            SliceFlags(truncated_key, init_key),
            strict_length,
            pad_output,
            span,
        )

    def _draw(self, storage: Storage, index: EpisodeIndex, count: int, length: int) -> tuple[Slices, dict[str, Tensor]]:
        uniforms = torch.rand(count, 2, dtype=torch.float64, generator=storage.generator, device="cpu").numpy()
        return index.draw_starts(length, uniforms, strict=self._strict, span=self._span), {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._size}, strict_length={self._strict})"
