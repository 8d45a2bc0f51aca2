"""Slices as they come in: every new window of steps once, soon after it was written, and otherwise old ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from replay_service.buffer.episode_marks import EpisodeMarks
from replay_service.buffer.episodes import EpisodeIndex, Slices
from replay_service.buffer.samplers.slices import EpisodeSampler, SliceFlags, SliceSize, Span
from replay_service.buffer.storages.base import Storage

__all__ = ["StreamingSliceSampler"]

Ints = NDArray[np.int64]


class StreamingSliceSampler(EpisodeSampler):
    """Divides what is written into windows of `slice_len` steps that do not overlap, each within one episode, and gives every whole
    window once, the oldest first. What a batch has room for beyond is drawn as `SliceSampler` draws.

    Steps at the end of an episode that fill no window are in none. A window that was overwritten, or cut by an end that moved, before
    its turn came is passed over.

    Args:
        slice_len: steps of a window and of every other slice; the batch size must be divisible by it.
        end_key, end_keys, traj_key, truncated_key, init_key, strict_length, pad_output, span: as `SliceSampler`; the last three matter for
            slices that are drawn.
        cache_values, compile, use_gpu: accepted for drop-in use.

    Raises:
        TypeError: `slice_len` is no integer, or several that mark ends.
        ValueError: a number out of range; `pad_output` with `strict_length`.
    """

    def __init__(
        self,
        *,
        slice_len: int,
        end_key: Any = None,
        end_keys: Sequence[Any] | None = None,
        traj_key: Any = None,
        cache_values: bool = False,
        truncated_key: Any = ("next", "truncated"),
        init_key: Any = "is_init",
        strict_length: bool = True,
        pad_output: bool = False,
        compile: bool | dict[str, Any] = False,
        span: Span = False,
        use_gpu: Any = False,
    ) -> None:
        super().__init__(
            SliceSize(None, slice_len),
            EpisodeMarks(traj_key=traj_key, end_key=end_key, end_keys=end_keys),
            SliceFlags(truncated_key, init_key),
            strict_length,
            pad_output,
            span,
        )
        # Windows that wait, as (first position, lane), and by lane the position where the next one begins.
        self._waiting: deque[tuple[int, int]] = deque()
        self._begins: dict[int, int] = {}
        self._lineage = 0

    def _draw(self, storage: Storage, index: EpisodeIndex, count: int, length: int) -> tuple[Slices, dict[str, Tensor]]:
        if self._lineage != self._keeper.lineage:
            self._waiting.clear()
            self._begins.clear()
            self._lineage = self._keeper.lineage
        for lane in range(index.lanes):
            self._divide(index, lane, length)
        fresh = self._fresh(index, count, length)
        missing = count - fresh.start.size
        if missing == 0:
            return fresh, {}
        uniforms = torch.rand(missing, 2, dtype=torch.float64, generator=storage.generator, device="cpu").numpy()
        drawn = index.draw_starts(length, uniforms, strict=self._strict, span=self._span)
        return Slices(*(np.concatenate(parts) for parts in zip(fresh, drawn, strict=True))), {}

    def _divide(self, index: EpisodeIndex, lane: int, length: int) -> None:
        """Lets all whole windows that were written to a lane since the last time wait for their turn."""
        begin, end = max(self._begins.get(lane, 0), self._keeper.oldest), self._keeper.end
        if begin >= end:
            return
        positions, lanes = np.arange(begin, end), np.full(end - begin, lane)
        is_head = index.bounds_of(self._keeper.slots_at(positions, lanes), lanes).position == 0
        is_head[0] = True  # of a window that began before
        firsts = positions[is_head]
        counts = (np.append(firsts[1:], end) - firsts) // length
        number_in_episode = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        windows = np.repeat(firsts, counts) + length * number_in_episode
        self._waiting.extend((first, lane) for first in windows.tolist())
        # The last episode may go on, and with it the window that began in it.
        self._begins[lane] = int(firsts[-1] + length * counts[-1])

    def _fresh(self, index: EpisodeIndex, count: int, length: int) -> Slices:
        """The next windows that are stored still, `count` at most."""
        found: list[Ints] = []
        missing = count
        while self._waiting and missing > 0:
            turn = [self._waiting.popleft() for _ in range(min(missing, len(self._waiting)))]
            first, lane = np.array(turn).T
            is_stored = first >= self._keeper.oldest
            first, lane = first[is_stored], lane[is_stored]
            start = self._keeper.slots_at(first, lane)
            bounds = index.bounds_of(start, lane)
            is_whole = bounds.length - bounds.position >= length
            found.append(np.stack([start, lane], 1)[is_whole])
            missing -= len(found[-1])
        start, lane = (np.concatenate(found) if found else np.empty((0, 2), np.int64)).T
        return Slices(start, (start + length - 1) % index.capacity, np.full(start.size, length), lane)

    def empty(self) -> None:
        """Forgets all records, and the windows that wait."""
        super().empty()
        self._waiting.clear()
        self._begins.clear()

    def state_dict(self) -> dict[str, Any]:
        """Where writing stands, and the windows that wait."""
        begins = [[lane, begin] for lane, begin in self._begins.items()]
        return {**super().state_dict(), "waiting": [list(window) for window in self._waiting], "begins": begins}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a state over, by copy."""
        waiting = deque((int(first), int(lane)) for first, lane in state_dict["waiting"])
        begins = {int(lane): int(begin) for lane, begin in state_dict["begins"]}
        super().load_state_dict(state_dict)
        self._waiting, self._begins = waiting, begins
        self._lineage = self._keeper.lineage

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._size}, waiting={len(self._waiting)})"
