"""Sample units: what each drawn record, the anchor, expands into before it is read."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from replay_service.buffer.counts import positive_integer
from replay_service.buffer.episode_keeper import EpisodeKeeper
from replay_service.buffer.episode_marks import EpisodeMarks
from replay_service.buffer.episodes import EpisodeIndex
from replay_service.buffer.storages.base import Storage

__all__ = ["EpisodeBoundary", "SampleUnit", "Sequence", "Transition"]

Ints = NDArray[np.int64]
EpisodeBoundary = Literal["pad", "stop", "include_reset"]


class SampleUnit(ABC):
    """Expands anchors into the records a batch is made of. The sampler decides which anchors, the unit what becomes of them.

    The buffer calls a unit under its lock, and tells it of writes as it tells a sampler.
    """

    needs_order: bool = False
    """Whether neighbouring slots must hold steps that came one after the other."""

    @abstractmethod
    def expand(self, index: Tensor, info: dict[str, Any], storage: Storage) -> tuple[Tensor, dict[str, Any]]:
        """Records int64 `[n]` and their info from anchors `index` int64 `[B]` (flat record numbers) and what a sampler says of them.

        Tensors of `info` that are aligned with the anchors must be aligned with the records afterwards.
        """

    def extend(self, index: Tensor) -> None:  # noqa: B027 - a unit without state has nothing to do
        """Is told of new records, int64 `[n]` in the order they were written; they are in the storage already."""

    def mark_update(self, index: Tensor, *, storage: Storage | None = None) -> None:  # noqa: B027
        """Is told of records that were changed in place."""

    def empty(self) -> None:  # noqa: B027
        """Forgets all records."""


class Transition(SampleUnit):
    """Every anchor is a transition: itself."""

    def expand(self, index: Tensor, info: dict[str, Any], storage: Storage) -> tuple[Tensor, dict[str, Any]]:
        """The anchors as they are."""
        return index, info

    def __repr__(self) -> str:
        return "Transition()"


class Sequence(SampleUnit):
    """Every anchor becomes a window of `W = burn_in + length + bootstrap` records of its lane, in the order they were written.

    Of the window's records, `length` from the anchor on are to be learned from; those before reconstruct a recurrent state, those behind
    supply a target. `B` anchors give a flat batch of `B * W` records, window after window. Burn-in never goes over the beginning of the
    anchor's episode: what would lie before is its first record again, and not valid.

    The info gets, each aligned with the records: `learning_mask`, `validity_mask` (bool), `anchor_index` (int64 `[n]`, or coordinates
    `[n, ndim]`: what priorities are updated with), `sequence_id` (which anchor of the batch) and `step_in_sequence`. What a sampler says
    of anchors, such as `priority_weight`, is repeated for their records, except entries that stand for stored ones.

    Args:
        length: records of a window to learn from.
        episode_boundary: what happens where a window goes over the end of the anchor's episode. `"pad"`: the last record is repeated and
            not valid. `"stop"`: the window begins earlier, so that it ends with the episode, if that is long enough; then as `"pad"`.
            `"include_reset"`: it goes on into the next episode (and burn-in into the one before), but never over the newest record.
        done_key: the entry with end flags. None: everything that a lane holds is one episode.
        burn_in: records before the anchor.
        bootstrap: records behind those to learn from.
        dilation: distance between the records of a window; 2 takes every other one.

    Raises:
        TypeError: a number is no integer.
        ValueError: a number is out of range, or there is no such `episode_boundary`.
    """

    needs_order = True

    def __init__(
        self,
        length: int,
        episode_boundary: EpisodeBoundary = "pad",
        done_key: Any = ("next", "done"),
        burn_in: int = 0,
        bootstrap: int = 0,
        dilation: int = 1,
    ) -> None:
        self.length = positive_integer(length, "length")
        if episode_boundary not in get_args(EpisodeBoundary):
            raise ValueError(
                f"episode_boundary ({episode_boundary!r}) must be one of {list(get_args(EpisodeBoundary))}"
            )
        self.episode_boundary = episode_boundary
        self.done_key = done_key
        self.burn_in = _natural(burn_in, "burn_in")
        self.bootstrap = _natural(bootstrap, "bootstrap")
        self.dilation = positive_integer(dilation, "dilation")
        self._keeper = EpisodeKeeper(EpisodeMarks(end_key=done_key, unmarked=done_key is None))
        self._offsets = self.dilation * np.arange(-self.burn_in, self.length + self.bootstrap)
        self._learning = torch.arange(self.window, device="cpu").ge(self.burn_in) & torch.arange(
            self.window, device="cpu"
        ).lt(self.burn_in + self.length)

    @property
    def window(self) -> int:
        """Records of a window."""
        return self.burn_in + self.length + self.bootstrap

    def expand(self, index: Tensor, info: dict[str, Any], storage: Storage) -> tuple[Tensor, dict[str, Any]]:
        """The windows of anchors `index` int64 `[B]`: records int64 `[B * W]`, and their masks.

        Raises:
            KeyError: `done_key` is not stored.
        """
        episodes = self._keeper.index_of(storage)
        anchors = index.numpy()
        slots, lanes = anchors // episodes.lanes, anchors % episodes.lanes
        if self.episode_boundary == "stop":
            slots = self._shifted(episodes, slots, lanes)
        across = self.episode_boundary == "include_reset"
        found, valid = episodes.window(slots, self._offsets, lanes, across=across)
        records = torch.from_numpy(found * episodes.lanes + lanes[:, None]).reshape(-1)
        stored = {leaf.key for leaf in storage.leaves() or ()}
        expanded: dict[str, Any] = {
            name: _repeated(value, anchors.size, self.window)
            for name, value in info.items()
            if not isinstance(name, tuple) and (name,) not in stored
        }
        expanded["learning_mask"] = self._learning.repeat(anchors.size)
        expanded["validity_mask"] = torch.from_numpy(valid).reshape(-1)
        coordinates = storage.coordinates(index)
        anchor = coordinates[0] if len(coordinates) == 1 else torch.stack(coordinates, 1)
        expanded["anchor_index"] = anchor.repeat_interleave(self.window, 0)
        expanded["sequence_id"] = torch.arange(anchors.size, device="cpu").repeat_interleave(self.window)
        expanded["step_in_sequence"] = torch.arange(self.window, device="cpu").repeat(anchors.size)
        return records, expanded

    def extend(self, index: Tensor) -> None:
        """Is told of new records."""
        self._keeper.written(index)

    def mark_update(self, index: Tensor, *, storage: Storage | None = None) -> None:
        """Is told of records that were changed in place, which may have moved the ends of episodes."""
        self._keeper.changed(index)

    def empty(self) -> None:
        """Forgets all records."""
        self._keeper.forget()

    def _shifted(self, episodes: EpisodeIndex, slots: Ints, lanes: Ints) -> Ints:
        """The slots where windows begin that end with their episodes at the latest, burn-in aside."""
        bounds = episodes.bounds_of(slots, lanes)
        latest = np.maximum(bounds.length - 1 - int(self._offsets[-1]), 0)
        shifted: Ints = (bounds.start + np.minimum(bounds.position, latest)) % episodes.capacity
        return shifted

    def __repr__(self) -> str:
        return (
            f"Sequence(length={self.length}, episode_boundary={self.episode_boundary!r}, done_key={self.done_key}, "
            f"burn_in={self.burn_in}, bootstrap={self.bootstrap}, dilation={self.dilation})"
        )


def _repeated(value: Any, anchors: int, times: int) -> Any:
    """What is said of anchors `[B, …]`, for each record of their windows."""
    if isinstance(value, tuple):
        return tuple(_repeated(part, anchors, times) for part in value)
    is_aligned = isinstance(value, Tensor) and value.ndim > 0 and value.shape[0] == anchors
    return value.repeat_interleave(times, 0) if is_aligned else value


def _natural(value: Any, name: str) -> int:
    """`value` as an integer that is not negative."""
    number = operator.index(value)
    if isinstance(value, bool) or number < 0:
        raise ValueError(f"{name} ({value}) must be an integer that is not negative")
    return number
