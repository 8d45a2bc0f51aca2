"""Frames on bins of time: which frames stand for a signal that comes less often."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from replay_service.buffer.counts import positive_integer

__all__ = ["binned"]


def binned(frames: int, num_bins: int, frames_per_bin: int | None = None) -> NDArray[np.int64]:
    """Positions of the frames that `num_bins` bins, which part `frames` frames without overlap, keep.

    Bin `b` reaches from `round(b * frames / num_bins)` to the frame before the next bin, and has one frame at least: with more bins than
    frames, frames come again.

    Returns:
        int64 `[num_bins]`, the frame in the middle of each bin, or `[num_bins, frames_per_bin]`, evenly spread from its first frame to its
        last one.

    Raises:
        TypeError, ValueError: a number is no positive integer, or there are no frames.
    """
    bins = positive_integer(num_bins, "num_bins")
    if frames < 1:
        raise ValueError(f"num_bins ({num_bins}) must part at least one frame; got a reference without frames")
    edges = np.rint(np.arange(bins + 1) * frames / bins).astype(np.int64)
    first = np.minimum(edges[:-1], frames - 1)
    last = np.maximum(edges[1:] - 1, first)
    if frames_per_bin is None:
        middles: NDArray[np.int64] = np.rint((first + last) / 2).astype(np.int64)
        return middles
    spread = np.linspace(0, 1, positive_integer(frames_per_bin, "frames_per_bin"))
    stacks: NDArray[np.int64] = np.rint(first[:, None] + spread * (last - first)[:, None]).astype(np.int64)
    return stacks
