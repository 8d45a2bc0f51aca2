"""Slices in epochs: from every episode one, then again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from replay_service.buffer.episode_marks import EpisodeMarks
from replay_service.buffer.episodes import EpisodeIndex, Slices
from replay_service.buffer.samplers.slices import EpisodeSampler, SliceFlags, SliceSize
from replay_service.buffer.storages.base import Storage

__all__ = ["SliceSamplerWithoutReplacement"]

Ints = NDArray[np.int64]


class SliceSamplerWithoutReplacement(EpisodeSampler):
    """Goes through the episodes in epochs: within one, every episode gives one slice, at a start that is drawn from all that fit.

    No step is drawn twice within an epoch. An epoch is over what was stored when it began: steps written meanwhile wait for the next
    one, and what was overwritten is passed over, so that epochs end however fast collectors write.

    Args:
        drop_last: leave out the last, smaller batch of an epoch.
        shuffle: a new random order of episodes for every epoch; else lane after lane, the oldest first.
        num_slices, slice_len, end_key, end_keys, traj_key, ends, trajectories, truncated_key, init_key, strict_length: as
            `SliceSampler`.
        compile, use_gpu: accepted for drop-in use.

    Raises:
        TypeError: both or neither of `num_slices` and `slice_len`, or several that mark ends.
        ValueError: a number out of range.
    """

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        drop_last: bool = False,
        end_key: Any = None,
        end_keys: Sequence[Any] | None = None,
        traj_key: Any = None,
        ends: Any = None,
        trajectories: Any = None,
        truncated_key: Any = ("next", "truncated"),
        init_key: Any = "is_init",
        strict_length: bool = True,
        shuffle: bool = True,
        compile: bool | dict[str, Any] = False,
        use_gpu: Any = False,
    ) -> None:
        super().__init__(
            SliceSize(num_slices, slice_len),
            EpisodeMarks(traj_key=traj_key, end_key=end_key, end_keys=end_keys, ends=ends, trajectories=trajectories),
            SliceFlags(truncated_key, init_key),
            strict_length,
        )
        self.drop_last = drop_last
        self.shuffle = shuffle
        # What is left of the epoch: rows of first position, last position and lane.
        self._left = np.empty((0, 3), np.int64)
        self._lineage = 0
        self._ran_out = False
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """How many epochs were begun."""
        return self._epoch

    @property
    def ran_out(self) -> bool:
        """Whether the last draw was the last of an epoch."""
        return self._ran_out

    @ran_out.setter
    def ran_out(self, value: bool) -> None:
        self._ran_out = bool(value)
        if self._ran_out:
            self._left = self._left[:0]

    def can_sample(self, storage: Storage, batch_size: int) -> bool:
        """Whether there is an episode to draw from; with `drop_last`, enough of them for a whole batch."""
        count, length = self._size.of(batch_size)
        episodes = self._keeper.index_of(storage).count(self._min_length(length)) if len(storage) else 0
        return episodes >= (count if self.drop_last else 1)

    def _draw(self, storage: Storage, index: EpisodeIndex, count: int, length: int) -> tuple[Slices, dict[str, Tensor]]:
        if self._lineage != self._keeper.lineage:
            self._left, self._lineage = self._left[:0], self._keeper.lineage
        needed = count if self.drop_last else 1
        taken, after = self._stored(index, count, length)
        if len(taken) < needed:
            self._begin(storage, index, length)
            taken, after = self._stored(index, count, length)
        if len(taken) < needed:
            self._refuse(index, count, length)
        self._left = self._left[after:]
        first, last, lane = taken.T
        width = np.minimum(last - first + 1, length)
        uniforms = torch.rand(len(taken), dtype=torch.float64, generator=storage.generator, device="cpu").numpy()
        begin = first + (uniforms * (last - first + 2 - width)).astype(np.int64)
        start = self._keeper.slots_at(begin, lane)
        upcoming, _ = self._stored(index, needed, length)
        self._ran_out = len(upcoming) < needed
        return Slices(start, (start + width - 1) % index.capacity, width, lane), {}

    def _begin(self, storage: Storage, index: EpisodeIndex, length: int) -> None:
        """A new epoch over all stored episodes."""
        found = index.trajectories()
        last = self._keeper.positions_at(found.stop, found.lane)
        episodes = np.stack([last - found.length + 1, last, found.lane], 1)[found.length >= self._min_length(length)]
        if self.shuffle:
            episodes = episodes[torch.randperm(len(episodes), generator=storage.generator, device="cpu").numpy()]
        self._left = episodes
        self._epoch += 1

    def _stored(self, index: EpisodeIndex, count: int, length: int) -> tuple[Ints, int]:
        """The next `count` episodes of the epoch, `[n, 3]`, as far as they are stored still, and how many to pass over with them."""
        taken: list[Ints] = []
        missing, at = count, 0
        while missing > 0 and at < len(self._left):
            chunk = self._left[at : at + missing]
            at += len(chunk)
            first, last, lane = chunk[chunk[:, 1] >= self._keeper.oldest].T
            bounds = index.bounds_of(self._keeper.slots_at(last, lane), lane)
            # An end that was moved since cuts an episode: what lies before it waits for the next epoch.
            first = np.maximum(np.maximum(first, self._keeper.oldest), last - bounds.position)
            is_whole = last - first + 1 >= self._min_length(length)
            taken.append(np.stack([first, last, lane], 1)[is_whole])
            missing -= len(taken[-1])
        return (np.concatenate(taken) if taken else self._left[:0]), at

    def _refuse(self, index: EpisodeIndex, count: int, length: int) -> None:
        """Raises what an epoch that gives no batch is due to."""
        index.draw_starts(length, np.empty((0, 2)), strict=self._strict)  # raises if no episode is long enough
        raise ValueError(
            f"drop_last (True) must leave a whole batch of {count} slices; got {index.count(self._min_length(length))} episodes "
            "to take one from each: draw fewer slices at a time, or set it to False"
        )

    def empty(self) -> None:
        """Forgets all records, and the epoch."""
        super().empty()
        self.ran_out = True
        self._ran_out = False

    def state_dict(self) -> dict[str, Any]:
        """Where writing stands, what is left of which epoch, and whether one is over."""
        left = torch.from_numpy(self._left.copy())
        return {**super().state_dict(), "left": left, "ran_out": self._ran_out, "epoch": self._epoch}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a state over, by copy; settings stay this sampler's own."""
        left = torch.as_tensor(state_dict["left"], dtype=torch.int64, device="cpu").reshape(-1, 3).numpy().copy()
        super().load_state_dict(state_dict)
        self._left, self._ran_out, self._epoch = left, bool(state_dict["ran_out"]), int(state_dict["epoch"])
        self._lineage = self._keeper.lineage

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._size}, drop_last={self.drop_last}, shuffle={self.shuffle})"
