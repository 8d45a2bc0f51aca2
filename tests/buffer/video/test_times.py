"""From times to frames."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from replay_service.buffer.video.times import nearest_frames


class Stream:
    """A stream whose frames are shown at given times."""

    def __init__(self, *times: float, duration_s: float) -> None:
        self.path = "stream.mp4"
        self.num_frames = len(times)
        self.duration_s = duration_s
        self._times = torch.tensor(times, dtype=torch.float64)

    def times(self) -> torch.Tensor:
        return self._times


def nearest(video: Any, times: Any, fps: float | None = None) -> list[Any]:
    frames = nearest_frames(video, times, fps)
    assert frames.dtype == torch.int64
    found: list[Any] = frames.tolist()
    return found


def test_the_nearest_frame_of_an_unsteady_stream() -> None:
    video = Stream(0.0, 0.1, 0.5, 2.0, duration_s=2.5)
    assert nearest(video, [0.0, 0.04, 0.06, 0.29, 0.31, 1.2, 1.3, 2.5]) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert nearest(video, 0.05) == 1  # of two as near, the later one
    assert nearest(video, [[0.5], [2.1]]) == [[2], [3]]
    assert nearest(video, []) == []


def test_a_steady_rate_that_is_known_is_arithmetic() -> None:
    video = Stream(*[0.0] * 10, duration_s=0.0)  # whose times are not asked for
    assert nearest(video, [0.0, 0.1, 0.24, 0.26, 2.4, 2.5], fps=4) == [0, 0, 1, 1, 9, 9]
    with pytest.raises(ValueError, match=r"timestamps \(2\.6 s\) must be in \[0, 2\.5\] s"):
        nearest(video, [2.6], fps=4)


@pytest.mark.parametrize(
    ("times", "fps", "words"),
    [
        ([0.1, -0.1], None, r"timestamps \(-0\.1 s\).*rows \[1\]"),
        ([3.0], None, r"stream\.mp4"),
        ([float("nan")], None, "NaN"),
        ([0.1], 0, r"fps \(0\)"),
    ],
)
def test_refused(times: list[float], fps: float | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        nearest(Stream(0.0, 1.0, duration_s=2.0), times, fps)
    with pytest.raises(ValueError, match="no frames"):
        nearest(Stream(duration_s=0.0), [0.0])
