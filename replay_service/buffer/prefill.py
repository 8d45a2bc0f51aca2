"""Recorded steps, copied into a buffer before anything else is written to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeVar

import torch
from tensordict import is_tensor_collection

from replay_service.buffer.counts import positive_integer
from replay_service.buffer.offline_files.opening import open_offline_file

__all__ = ["prefill_replay_buffer"]

Buffer = TypeVar("Buffer")
Advance = Callable[[int], None]


def prefill_replay_buffer(
    rb: Buffer, dataset: Any, n_samples: int | None = None, chunk_size: int = 1000, *, progress: bool | None = None
) -> Buffer:
    """Copies steps of a data set into a buffer, in the order in which they were made, so that trajectories stay whole.

    Args:
        rb: the buffer, or a handle on one: anything with `extend`.
        dataset: a buffer, a handle, an open `OfflineFile`, steps as a TensorDict, or the path of a file; of a file, only the steps that are
            copied are read, chunk by chunk.
        n_samples: how many, the first ones; None for all. Of a buffer with lanes, of all lanes each.
        chunk_size: steps of one `extend`.
        progress: show a bar; None shows one if the error output is a terminal.

    Returns:
        `rb`.

    Raises:
        TypeError, ValueError: a number is not positive, or no data set.
        FileNotFoundError, LayoutError, ModuleNotFoundError: as `open_offline_file`.
        LayoutError: the steps do not fit the buffer. As all steps of a data set look alike, nothing was written.
    """
    chunk = positive_integer(chunk_size, "chunk_size")
    wanted = None if n_samples is None else positive_integer(n_samples, "n_samples")
    shows = sys.stderr.isatty() if progress is None else progress
    with ExitStack() as opened:
        if isinstance(dataset, str | os.PathLike):
            dataset = opened.enter_context(open_offline_file(dataset))
        read, steps = _reader(dataset)
        total = steps if wanted is None else min(wanted, steps)
        advance = opened.enter_context(_bar(total, shows))
        for start in range(0, total, chunk):
            stop = min(start + chunk, total)
            rb.extend(read(start, stop))  # type: ignore[attr-defined]
            advance(stop - start)
    return rb


def _reader(dataset: Any) -> tuple[Callable[[int, int], Any], int]:
    """What reads the steps from one number to another, and how many there are."""
    storage = getattr(dataset, "storage", None)
    members = getattr(dataset, "members", None)
    if members is not None:
        raise TypeError("dataset (several buffers) must be one buffer: copy each of rb[i], one after the other")
    if storage is not None:
        # In a full ring the oldest step is where the next one will be written.
        filled = int(storage.filled)
        first = int(getattr(dataset.writer, "cursor", 0)) if filled == storage.slots else 0
        if first:
            return lambda start, stop: dataset[(torch.arange(start, stop, device="cpu") + first) % filled], filled
        return lambda start, stop: dataset[start:stop], filled
    if is_tensor_collection(dataset):
        if not dataset.ndim:
            raise ValueError("dataset must have a leading dimension of steps; got none")
        return lambda start, stop: dataset[start:stop], int(dataset.shape[0])
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise TypeError(
            f"dataset ({type(dataset).__name__}) must be a buffer, a handle, a TensorDict or the path of a file of steps"
        )
    return lambda start, stop: dataset[start:stop], len(dataset)


@contextmanager
def _bar(total: int, shows: bool) -> Iterator[Advance]:
    """A progress bar on the error output; without one, nothing is imported for it."""
    if not shows:
        yield lambda steps: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    parts = (TextColumn("copying steps"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar: AbstractContextManager[Progress] = Progress(*parts, console=Console(stderr=True))
    with bar as shown:
        task = shown.add_task("copy", total=total)
        yield lambda steps: shown.advance(task, steps)
