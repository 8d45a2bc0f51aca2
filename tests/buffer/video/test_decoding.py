"""Frames are those that were drawn, whatever file they are in and in whatever order they are asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from replay_service import VideoClipRef
from replay_service.buffer.video.decoders import OpenVideo
from tests.video_files import drawn, ffmpeg, needs_video, read_dense, written

pytestmark = needs_video

LOSSY = {"codec": "libx264", "pixel_format": "yuv420p", "crf": 30}


@pytest.mark.parametrize("frames", [1, 2, 5, 60])
@pytest.mark.parametrize("size", [(32, 48), (33, 47)], ids=["even", "odd"])
def test_short_and_odd_clips_come_back_as_drawn(tmp_path: Path, frames: int, size: tuple[int, int]) -> None:
    dense = drawn(frames, *size)
    ref = VideoClipRef(written(tmp_path / "clip.mp4", dense))
    assert torch.equal(ref.decode(), dense)
    _compare(ref, dense)


@pytest.mark.parametrize("container", ["mp4", "mkv"])
def test_bidirectional_frames_are_those_that_a_player_shows(tmp_path: Path, container: str) -> None:
    path = written(
        tmp_path / f"b.{container}", drawn(70), **LOSSY, extra_options={"bf": 3, "g": 25, "x264-params": "b-adapt=0"}
    )
    dense = read_dense(path, (32, 48))
    assert dense.shape[0] == 70
    # The two convert colours with other rounding.
    assert int((VideoClipRef(path).decode().int() - dense.int()).abs().max()) <= 3
    _compare(VideoClipRef(path), VideoClipRef(path).decode())


def test_a_variable_rate_changes_times_and_not_frames(tmp_path: Path) -> None:
    dense = drawn(30)
    steady = written(tmp_path / "steady.mkv", dense)
    path = tmp_path / "variable.mkv"
    timing = ["-vf", "setpts=N*(N+10)/100/TB", "-vsync", "passthrough", "-enc_time_base", "-1"]
    ffmpeg("-i", steady, *timing, "-c:v", "libx264rgb", "-crf", "0", path)
    ref = VideoClipRef(path)
    assert torch.equal(ref.decode(), dense)
    _compare(ref, dense)
    frames = torch.arange(30, dtype=torch.float64)
    times = frames * (frames + 10) / 100
    assert torch.allclose(OpenVideo(str(path), None).times(), times, atol=2e-3)
    late = VideoClipRef.from_timestamps(path, times + 0.003)
    assert late.frame_index.tolist() == list(range(30))
    assert VideoClipRef.from_timestamps(path, [0.0, 0.05, 0.06, 1.95, 2.1]).frame_index.tolist() == [0, 0, 1, 10, 10]


def test_the_stream_that_is_asked_for_is_decoded(tmp_path: Path) -> None:
    one, two = drawn(12, seed=1), drawn(12, 24, 24, seed=2)
    path = written(tmp_path / "two.mkv", one, two)
    assert torch.equal(VideoClipRef(path, stream=0)[3:7].decode(), one[3:7])
    assert torch.equal(VideoClipRef.from_file(path, stream=1)[2:9].decode(), two[2:9])
    assert VideoClipRef.from_files([path], stream=1).stream == 1
    assert VideoClipRef.from_timestamps(path, [0.5], stream=1).decode().shape == (1, 3, 24, 24)


def test_many_files_are_one_sequence(tmp_path: Path) -> None:
    parts = [drawn(5 + n, seed=n) for n in range(6)]
    paths = [written(tmp_path / f"{n}.mp4", part) for n, part in enumerate(parts)]
    _compare(VideoClipRef.from_files(paths), torch.cat(parts))
    straddling = VideoClipRef.from_files(paths)[3:15]
    assert torch.equal(straddling.decode(), torch.cat(parts)[3:15])


def test_results_are_contiguous_and_the_callers_own(tmp_path: Path) -> None:
    ref = VideoClipRef(written(tmp_path / "clip.mp4", drawn(20)))
    for part in (ref, ref[3:9], ref[[7, 2, 2]]):
        frames = part.decode()
        assert frames.is_contiguous()
        frames.zero_()
    assert torch.equal(ref.decode(), drawn(20))


def test_a_file_that_breaks_off_is_refused(tmp_path: Path) -> None:
    whole = Path(written(tmp_path / "whole.mkv", drawn(60)))
    cut = tmp_path / "cut.mkv"
    ref = VideoClipRef(cut, torch.arange(60))
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    with pytest.raises((ValueError, IndexError), match=r"cut\.mkv"):
        ref.decode()


def _compare(ref: VideoClipRef, dense: Tensor) -> None:
    """Frames in any order, some of them several times, alone and in runs, are those of the dense copy."""
    generator = torch.Generator().manual_seed(0)
    count = dense.shape[0]
    orders = [
        torch.randperm(count, generator=generator),
        torch.randint(0, count, (3 * count,), generator=generator),
        torch.arange(count - 1, -1, -1),
        torch.arange(0, count, 3),
        torch.arange(count // 3, count),
        torch.randint(0, count, (2, 3, 2), generator=generator),
    ]
    for order in orders:
        assert torch.equal(ref[order].decode(), dense[order])
    for frame in torch.randint(0, count, (5,), generator=generator).tolist():
        assert torch.equal(ref[frame].decode(), dense[frame])
