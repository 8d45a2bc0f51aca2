"""From times to frames."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from replay_service.buffer.video.decoders import OpenVideo

__all__ = ["nearest_frames"]


def nearest_frames(video: OpenVideo, timestamps: Any, fps: float | None = None) -> Tensor:
    """The frame nearest to each time; of two that are as near, the later one.

    Args:
        video: the stream.
        timestamps: seconds from its beginning, of any shape.
        fps: frames per second, for streams that are known to have a steady rate; None asks the file, frame by frame.

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
    if fps is not None:
        return (wanted * fps + 0.5).floor().to(torch.int64).clamp_(max=video.num_frames - 1)
    times = video.times()
    later = torch.searchsorted(times, wanted.contiguous()).clamp_(max=times.numel() - 1)
    earlier = (later - 1).clamp_min(0)
    is_earlier = (wanted - times[earlier]) < (times[later] - wanted)
    return torch.where(is_earlier, earlier, later)
