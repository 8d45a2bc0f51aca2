"""Files that are being written, and frames as they come."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from clients.video_file import VideoEncoding, VideoFile, as_frame
from replay_service import VideoClipRef
from tests.video_files import drawn, needs_video

LOSSLESS = VideoEncoding(codec="libx264rgb", quality=0, pixel_format="rgb24", suffix=".mkv")


@needs_video
@pytest.mark.parametrize("size", [(32, 48), (33, 47)])
def test_a_file_has_its_name_when_it_is_whole(tmp_path: Path, size: tuple[int, int]) -> None:
    file = VideoFile(tmp_path / "episode.mkv", 30, LOSSLESS)
    for frame in drawn(40, *size):
        file.append(frame)
        assert not file.path.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["episode.part.mkv"]
    file.finish()
    assert [path.name for path in tmp_path.iterdir()] == ["episode.mkv"]
    assert torch.equal(VideoClipRef(file.path).decode(), drawn(40, *size))


@needs_video
def test_the_usual_encoding_is_close_and_small(tmp_path: Path) -> None:
    still = torch.zeros(64, 3, 90, 120, dtype=torch.uint8)
    for n in range(64):
        still[n, :, 20:60, n : n + 30] = 200
    file = VideoFile(tmp_path / "a.mp4", 30, VideoEncoding())
    for frame in still:
        file.append(frame)
    file.finish()
    assert file.path.stat().st_size < still.nbytes / 50
    assert (VideoClipRef(file.path).decode().int() - still.int()).abs().float().mean() < 3


@needs_video
def test_odd_sizes_are_encoded_too(tmp_path: Path) -> None:
    file = VideoFile(tmp_path / "odd.mp4", 30, VideoEncoding())
    file.append(drawn(1, 33, 47)[0])
    file.finish()
    assert VideoClipRef(file.path).decode().shape == (1, 3, 33, 47)


@needs_video
def test_what_does_not_fit_is_refused_and_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = VideoFile(tmp_path / "a.mkv", 30, LOSSLESS)
    with pytest.raises(ValueError, match="encoding"):
        VideoFile(tmp_path / "b.mkv", 30, VideoEncoding(codec="no such codec")).append(drawn(1)[0])
    file.append(drawn(1)[0])
    with pytest.raises(ValueError, match=r"frame \(\[3, 16, 16\]\)"):
        file.append(drawn(1, 16, 16)[0])
    file.finish()
    assert VideoClipRef(file.path).batch_size == (1,)
    assert [path.name for path in tmp_path.iterdir()] == ["a.mkv"]


@needs_video
def test_a_file_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    file = VideoFile(tmp_path / "a.mp4", 30, VideoEncoding())
    file.append(drawn(1)[0])
    file.discard()
    file.discard()
    VideoFile(tmp_path / "never.mp4", 30, VideoEncoding()).discard()
    assert list(tmp_path.iterdir()) == []


@needs_video
def test_a_file_that_lost_frames_gets_no_name(tmp_path: Path) -> None:
    file = VideoFile(tmp_path / "a.mkv", 30, LOSSLESS)
    file.append(drawn(1)[0])
    file.frames = 3
    with pytest.raises(OSError, match=r"a\.mkv.*all 3 frames; got 1"):
        file.finish()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises((OSError, ValueError), match=r"missing"):
        VideoFile(tmp_path / "missing" / "a.mp4", 30, VideoEncoding()).append(drawn(1)[0])


def test_frames_as_environments_render_them() -> None:
    rendered = np.random.default_rng(0).integers(0, 255, (4, 6, 3), dtype=np.uint8)
    assert torch.equal(as_frame(rendered), torch.from_numpy(rendered).permute(2, 0, 1))
    assert torch.equal(as_frame(rendered[::-1]), torch.from_numpy(rendered[::-1].copy()).permute(2, 0, 1))
    assert as_frame(torch.zeros(3, 8, 9, dtype=torch.uint8)).shape == (3, 8, 9)
    with pytest.raises(TypeError, match="uint8; got float32"):
        as_frame(torch.zeros(3, 4, 4))
    for shape in [(4, 4), (4, 4, 1), (1, 4, 4), (3, 0, 4), (2, 3, 4, 4)]:
        with pytest.raises(ValueError, match="frame"):
            as_frame(torch.zeros(shape, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"keyframe_interval": 0}, ValueError),
        ({"keyframe_interval": 1.5}, TypeError),
        ({"suffix": "mp4"}, ValueError),
    ],
)
def test_encodings_that_are_none(settings: dict[str, object], kind: type[Exception]) -> None:
    with pytest.raises(kind, match=next(iter(settings))):
        VideoEncoding(**settings)  # type: ignore[arg-type]
