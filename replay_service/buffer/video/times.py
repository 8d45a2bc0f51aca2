"""From times to frames."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from replay_service.buffer.video.decoders import OpenVideo

__all__ = ["nearest_frames"]

AROUND = 2
"""Frames on either side of a guess that are looked at."""


def nearest_frames(video: OpenVideo, timestamps: Any, fps: float | None = None) -> Tensor:
    """The frame nearest to each time; of two that are as near, the later one.

    Args:
        video: the stream.
        timestamps: seconds from its beginning, of any shape.
        fps: frames per second, for streams that are known to have a steady rate; None asks the file: a few frames around
            each time where the rate is steady, else all.

    Returns:
        frame numbers int64, shaped as `timestamps`.

    Raises:
        ValueError: a time is no number, is negative or beyond the end of the last frame, or `fps` is not positive.
    """
    wanted = torch.as_tensor(timestamps, dtype=torch.float64, device="cpu")
    if not bool(torch.isfinite(wanted).all()):
        raise ValueError("timestamps must be finite numbers of seconds; got NaN or infinity")
    if fps is not None and not fps > 0:
        raise ValueError(f"fps ({fps}) must be positive")
    if video.num_frames == 0:
        raise ValueError(f"timestamps must be times of {video.path!r}, which has no frames")
    end = video.duration_s if fps is None else video.num_frames / fps
    wrong = (wanted < 0) | (wanted > end)
    if bool(wrong.any()):
        raise ValueError(
            f"timestamps ({float(wanted[wrong][0])} s) must be in [0, {end:.6g}] s, the length of {video.path!r}; got it in rows "
            f"{wrong.reshape(-1).nonzero().reshape(-1)[:8].tolist()}"
        )
    if wanted.numel() == 0:
        return wanted.to(torch.int64)
    if fps is not None:
        return (wanted * fps + 0.5).floor().to(torch.int64).clamp_(max=video.num_frames - 1)
    flat = wanted.reshape(-1)
    found = _guessed(video, flat)
    return (_looked_up(video, flat) if found is None else found).reshape(wanted.shape)


def _guessed(video: OpenVideo, wanted: Tensor) -> Tensor | None:
    """The nearest frames, if all of them are about where a steady rate would have them; else None. Few frames are decoded for it.

    Times ascend, so that the distance to a time has one valley: a frame that is nearer than both its neighbours is the nearest of all.
    """
    last = video.num_frames - 1
    guess = (wanted / video.duration_s * video.num_frames).to(torch.int64).clamp_(0, last)
    around = (guess[:, None] + torch.arange(-AROUND, AROUND + 1, device="cpu")).clamp_(0, last)
    frames = torch.unique(around)
    if 2 * frames.numel() > video.num_frames:
        return None
    times = video.times(frames)[torch.searchsorted(frames, around)]
    distance = (times - wanted[:, None]).abs()
    # From behind, so that of two that are as near the later one is found.
    place = 2 * AROUND - distance.flip(1).argmin(1)
    best = around.gather(1, place[:, None]).squeeze(1)
    is_valley = ((best - guess).abs() < AROUND) | (best == 0) | (best == last)
    return best if bool(is_valley.all()) else None


def _looked_up(video: OpenVideo, wanted: Tensor) -> Tensor:
    """The nearest frames by the times of all of them."""
    times = video.times()
    later = torch.searchsorted(times, wanted).clamp_(max=times.numel() - 1)
    earlier = (later - 1).clamp_min(0)
    is_earlier = (wanted - times[earlier]) < (times[later] - wanted)
    return torch.where(is_earlier, earlier, later)
