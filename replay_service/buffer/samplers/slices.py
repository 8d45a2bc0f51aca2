"""What all slice samplers share: how many slices of which length a batch has, and the records and entries they become."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from replay_service.buffer.counts import positive_integer
from replay_service.buffer.episode_columns import span_steps
from replay_service.buffer.episode_keeper import EpisodeKeeper
from replay_service.buffer.episode_marks import EpisodeMarks, entry_of
from replay_service.buffer.episodes import EpisodeIndex, Slices
from replay_service.buffer.samplers.base import Sampler, require_rows
from replay_service.buffer.storages.base import Storage
from replay_service.buffer.trajectory import as_key
from replay_service.specs import Key

__all__ = ["MASK_KEY", "EpisodeSampler", "SliceFlags", "SliceSize", "Span"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Span = bool | int | tuple[bool | int, bool | int]

MASK_KEY: Key = ("collector", "mask")
"""Where a padded batch tells real steps (True) from repeated ones."""


class SliceSize:
    """How a batch is divided into slices.

    Args:
        num_slices: slices of a batch; their length follows from the size of the batch.
        slice_len: steps of a slice; their number follows. Exactly one of the two.

    Raises:
        TypeError: both or neither, or no integer.
        ValueError: not positive.
    """

    def __init__(self, num_slices: int | None, slice_len: int | None) -> None:
        if (num_slices is None) == (slice_len is None):
            raise TypeError(
                f"exactly one of num_slices and slice_len must be given; got num_slices={num_slices}, slice_len={slice_len}"
            )
        self.num_slices = None if num_slices is None else positive_integer(num_slices, "num_slices")
        self.slice_len = None if slice_len is None else positive_integer(slice_len, "slice_len")

    def of(self, batch_size: int) -> tuple[int, int]:
        """Number and length of the slices of a batch.

        Raises:
            ValueError: the batch cannot be divided like that.
        """
        part = self.num_slices or self.slice_len or 1
        if batch_size % part:
            name = "slice_len" if self.num_slices is None else "num_slices"
            raise ValueError(f"batch_size ({batch_size}) must be divisible by {name} ({part})")
        return (part, batch_size // part) if self.num_slices is not None else (batch_size // part, part)

    def __repr__(self) -> str:
        return f"slice_len={self.slice_len}" if self.num_slices is None else f"num_slices={self.num_slices}"


class SliceFlags:
    """The entries that say where slices begin and end.

    `truncated_key` is True at the last step of every slice, and so is the entry `done` beside it, which is True also where a record
    says so; `terminated` beside it is what records say. `init_key` is True at the first step of every slice and where a record says so;
    it is only given where records have that entry. Each is bool `[n, *shape]` as stored, or `[n, 1]`.

    Args:
        truncated_key: None leaves the first three out.
        init_key: None leaves `init_key` out.
    """

    def __init__(self, truncated_key: Any, init_key: Any) -> None:
        self._truncated = None if truncated_key is None else as_key("truncated_key", truncated_key)
        self._init = None if init_key is None else as_key("init_key", init_key)

    def entries(self, storage: Storage, records: Tensor, is_first: Bools, is_last: Bools) -> dict[str | Key, Tensor]:
        """The entries of the records `[n]` of slices, whose first and last steps are flagged."""
        entries: dict[str | Key, Tensor] = {}
        if self._truncated is not None:
            names = [(*self._truncated[:-1], name) for name in ("done", "terminated")]
            truncated, done, terminated = (entry_of(storage, key, records) for key in (self._truncated, *names))
            shape = next((t.shape for t in (truncated, done, terminated) if t is not None), (records.numel(), 1))
            last = torch.from_numpy(is_last).view(-1, *[1] * (len(shape) - 1)).expand(shape)
            entries[_name(self._truncated)] = last.clone()
            entries[_name(names[0])] = last.clone() if done is None else done.bool() | last
            entries[_name(names[1])] = (
                torch.zeros(shape, dtype=torch.bool, device="cpu") if terminated is None else terminated.bool()
            )
        if self._init is not None:
            stored = entry_of(storage, self._init, records)
            if stored is not None:
                first = torch.from_numpy(is_first).view(-1, *[1] * (stored.ndim - 1))
                entries[_name(self._init)] = stored.bool() | first
        return entries


class EpisodeSampler(Sampler):
    """Base of samplers that draw runs of steps within episodes; what it is told goes to its keeper.

    Args:
        size: how batches are divided.
        marks: what tells where episodes end.
        flags: the entries that say where slices begin and end.
        strict_length: only episodes that are long enough for a whole slice are drawn from; else shorter ones are slices, too.
        pad_output: shorter slices are filled up by repeating their last step; `MASK_KEY` tells which steps are real.
        span: how far a slice may hang over the (left, right) end of its episode, where it is cut off; see `EpisodeView.draw_starts`.

    Raises:
        ValueError: `pad_output` with `strict_length`: there would be nothing to pad.
    """

    needs_order = True

    def __init__(
        self,
        size: SliceSize,
        marks: EpisodeMarks,
        flags: SliceFlags,
        strict_length: bool = True,
        pad_output: bool = False,
        span: Span = False,
    ) -> None:
        if pad_output and strict_length:
            raise ValueError("pad_output (True) must come with strict_length=False; with it no slice is short")
        if size.slice_len is not None:
            span_steps(span, size.slice_len)  # refuses a span that no slice of that length can have
        self._size = size
        self._flags = flags
        self._strict = strict_length
        self._pad = pad_output
        self._span = span
        self._keeper = EpisodeKeeper(marks)

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draws slices: their records int64 `[n]`, slice after slice, and where they begin and end.

        `n` is `batch_size`, or less where slices are cut off or short and not padded.

        Raises:
            EmptyBufferError: there is no episode, or none that is long enough.
            ValueError: `batch_size` cannot be divided into slices.
            KeyError: no stored entry marks episodes.
        """
        count, length = self._size.of(batch_size)
        require_rows(storage)
        index = self._keeper.index_of(storage)
        slices, info = self._draw(storage, index, count, length)
        records, entries = self._expanded(storage, index, slices, length)
        lengths = self._lengths(slices, length)
        # Not by torch's repeat_interleave: it wakes all threads for a few rows, which costs a busy machine milliseconds.
        repeated = {name: torch.from_numpy(np.repeat(value.numpy(), lengths)) for name, value in info.items()}
        return records, {**entries, **repeated}

    @abstractmethod
    def _draw(self, storage: Storage, index: EpisodeIndex, count: int, length: int) -> tuple[Slices, dict[str, Tensor]]:
        """Draws slices, `count` as a rule, and what there is to say of each, `[slices]`."""

    def can_sample(self, storage: Storage, batch_size: int) -> bool:
        """Whether there is an episode to draw from."""
        _, length = self._size.of(batch_size)
        return len(storage) > 0 and self._keeper.index_of(storage).count(self._min_length(length)) > 0

    def extend(self, index: Tensor) -> None:
        """Is told of new records, int64 `[n]` in the order they were written."""
        self._keeper.written(index)

    def mark_update(self, index: Tensor, *, storage: Storage | None = None) -> None:
        """Is told of records that were changed in place, which may have moved the ends of episodes."""
        self._keeper.changed(index)

    def empty(self) -> None:
        """Forgets all records."""
        self._keeper.forget()

    def state_dict(self) -> dict[str, Any]:
        """Where writing stands: what is stored tells the rest."""
        return self._keeper.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a state over, by copy."""
        self._keeper.load_state_dict(state_dict)

    def _min_length(self, length: int) -> int:
        """Steps that an episode must have to be drawn from."""
        return length if self._strict else 1

    def _lengths(self, slices: Slices, length: int) -> Ints:
        """Rows of each slice in the batch."""
        return np.full(slices.length.size, length) if self._pad else slices.length

    def _expanded(
        self, storage: Storage, index: EpisodeIndex, slices: Slices, length: int
    ) -> tuple[Tensor, dict[str, Any]]:
        """The records of slices, one after the other, and the entries that tell of them."""
        rows = self._lengths(slices, length)
        first = np.cumsum(rows) - rows
        steps = np.arange(int(rows.sum())) - np.repeat(first, rows)
        # Steps beyond the end of a slice are padding: its last step again.
        last = np.repeat(slices.length - 1, rows)
        slots = (np.repeat(slices.start, rows) + np.minimum(steps, last)) % index.capacity
        records = torch.from_numpy(slots * index.lanes + np.repeat(slices.lane, rows))
        entries: dict[str, Any] = dict(self._flags.entries(storage, records, steps == 0, steps == last))  # type: ignore[arg-type]
        if self._pad:
            entries[MASK_KEY] = torch.from_numpy(steps <= last)  # type: ignore[index]
        return records, entries


def _name(key: Key) -> str | Key:
    return key[0] if len(key) == 1 else key
