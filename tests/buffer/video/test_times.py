"""From times to frames."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from replay_service.buffer.video.times import nearest_frames


class Stream:
    """A stream whose frames are shown at given times."""

    def __init__(self, *times: float, duration_s: float) -> None:
        self.path = "stream.mp4"
        self.num_frames = len(times)
        self.duration_s = duration_s
        self.asked: list[int] = []
        self._times = torch.tensor(times, dtype=torch.float64)

    def times(self, frames: torch.Tensor | None = None) -> torch.Tensor:
        self.asked.append(self.num_frames if frames is None else frames.numel())
        return self._times if frames is None else self._times[frames]


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


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=40),
    st.lists(st.floats(0, 1), min_size=1, max_size=5),
    st.booleans(),
)
def test_the_frame_found_is_the_nearest_of_all(gaps: list[int], places: list[float], steady: bool) -> None:
    lengths = torch.tensor([10] * len(gaps) if steady else gaps, dtype=torch.float64) / 100
    times = lengths.cumsum(0) - lengths
    video = Stream(*times.tolist(), duration_s=float(lengths.sum()))
    wanted = torch.tensor(places, dtype=torch.float64) * lengths.sum()
    found = nearest(video, wanted)
    distance = (times - wanted[:, None]).abs()
    assert torch.allclose(distance.gather(1, torch.tensor(found)[:, None]).squeeze(1), distance.amin(1))


def test_few_frames_of_a_steady_stream_are_looked_at() -> None:
    video = Stream(*(torch.arange(1000) / 25).tolist(), duration_s=40.0)
    assert nearest(video, [0.0, 10.03, 39.99, 40.0]) == [0, 251, 999, 999]
    assert sum(video.asked) < 20
    unsteady = Stream(*((torch.arange(1000) / 25) ** 1.1).tolist(), duration_s=60.0)
    nearest(unsteady, [10.0])
    assert unsteady.asked[-1] == 1000


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
