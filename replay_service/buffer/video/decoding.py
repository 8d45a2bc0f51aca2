"""From the addresses of frames to frames: file by file, every frame once, neighbours in one go."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from replay_service.buffer.video.decoders import OpenVideo, open_video
from replay_service.buffer.video.runs import Reading, readings
from replay_service.buffer.video.source import source_of

__all__ = ["decoded"]

Ints = NDArray[np.int64]
Frame = NDArray[np.uint8]
MOST_SHOWN = 8


def decoded(files: Ints, frames: Ints) -> Tensor:
    """The frames at `frames` int64 `[n]` of the files with the numbers `files` int64 `[n]`, in that order.

    Returns:
        uint8 `[n, C, H, W]`, contiguous, the caller's own.

    Raises:
        ImportError: torchcodec or FFmpeg is not installed.
        FileNotFoundError: a file is missing; it and the rows concerned are named.
        IndexError: a frame number is out of the range of its file.
        ValueError: a file is no video, is damaged, or has frames of another size than the others.
        LookupError: this process was not told what a number stands for.
    """
    out: Tensor | None = None
    sized: tuple[str, tuple[int, ...]] | None = None
    for number, rows in readings(files):
        path, found = _read(number, frames[rows], rows)
        size = found[0].shape
        if out is None or sized is None:
            out, sized = torch.empty((files.size, *size), dtype=torch.uint8, device="cpu"), (path, size)
        elif sized[1] != size:
            raise ValueError(
                f"source ({path!r}) must have frames of {list(sized[1])} like {sized[0]!r} to be stacked with it; got {list(size)} "
                f"in rows {_shown(rows)}"
            )
        # NumPy turns the decoder's [H, W, C] memory into [C, H, W] in half the time that torch takes.
        target = out.numpy()
        for row, frame in zip(rows.tolist(), found, strict=True):
            target[row] = frame
    return torch.zeros(0, 3, 0, 0, dtype=torch.uint8, device="cpu") if out is None else out


def _read(number: int, frames: Ints, rows: Ints) -> tuple[str, list[Frame]]:
    """The path of one file, and its frames `[C, H, W]` in the order asked for; `rows` are named where that fails."""
    try:
        source = source_of(number)
        video = open_video(source.path, source.stream)
        _require_in_range(video, frames, rows)
        reading = Reading(frames)
        parts = video.read(reading.frames.tolist(), reading.runs())
    except (OSError, ValueError, LookupError) as error:
        if isinstance(error, IndexError):
            raise
        raise type(error)(f"{error}, in rows {_shown(rows)}") from error
    found = [frame for part in parts for frame in part.numpy()]
    return source.path, [found[place] for place in reading.place.tolist()]


def _require_in_range(video: OpenVideo, frames: Ints, rows: Ints) -> None:
    wrong = (frames < 0) | (frames >= video.num_frames)
    if wrong.any():
        raise IndexError(
            f"frame_index ({frames[wrong][0]}) must be in [0, {video.num_frames}), the frames of {video.path!r}; got it in rows "
            f"{_shown(rows[wrong])}"
        )


def _shown(rows: Sequence[int] | Ints) -> str:
    listed = [str(row) for row in rows[:MOST_SHOWN]]
    more = len(rows) - len(listed)
    return f"[{', '.join(listed)}{f', … {more} more' if more > 0 else ''}]"
