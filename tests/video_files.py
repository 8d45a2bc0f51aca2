"""Video files to test with, and whether this machine can make and read any."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

__all__ = ["drawn", "ffmpeg", "needs_video", "read_dense", "written"]

LOSSLESS = {"codec": "libx264rgb", "crf": 0, "preset": "ultrafast"}
"""Settings under which every frame comes back as it was drawn, bit by bit."""


def _missing() -> str:
    """What this machine lacks for these tests; nothing if they can run."""
    if shutil.which("ffmpeg") is None:
        return "ffmpeg is not installed (apt-get install ffmpeg)"
    try:
        import torchcodec.decoders  # noqa: F401 - to see whether it can be
    except ModuleNotFoundError:
        return "torchcodec is not installed (pip install 'replay-service[video]')"
    except (RuntimeError, OSError) as error:
        return f"torchcodec finds no FFmpeg: {str(error).splitlines()[0]}"
    return ""


MISSING = _missing()
needs_video = pytest.mark.skipif(bool(MISSING), reason=MISSING or "can run")


def drawn(frames: int, height: int = 32, width: int = 48, seed: int = 0) -> Tensor:
    """Frames uint8 `[frames, 3, height, width]` of which no two are alike: a box that moves over noise."""
    generator = torch.Generator().manual_seed(seed)
    still = torch.randint(0, 255, (3, height, width), generator=generator, dtype=torch.uint8)
    made = still.repeat(frames, 1, 1, 1)
    for frame in range(frames):
        row, column = frame * 3 % (height - 7), frame * 5 % (width - 7)
        made[frame, :, row : row + 8, column : column + 8] = frame * 7 % 256
    return made


def written(path: Path, *streams: Tensor, rate: float = 10, **options: Any) -> str:
    """A file with one stream for each `[frames, 3, height, width]`, by default without loss. Its path."""
    from torchcodec.encoders import Encoder

    encoder = Encoder()
    settings = options or LOSSLESS
    made = [
        encoder.add_video(height=frames.shape[2], width=frames.shape[3], frame_rate=rate, **settings)
        for frames in streams
    ]
    with encoder.open_file(path):
        for stream, frames in zip(made, streams, strict=True):
            stream.add_frames(frames)
    return str(path)


def ffmpeg(*arguments: str | Path) -> None:
    """Runs ffmpeg."""
    done = subprocess.run(
        ["ffmpeg", "-v", "error", "-y", *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def read_dense(path: str, size: Sequence[int], stream: int = 0) -> Tensor:
    """All frames of a file uint8 `[frames, 3, height, width]`, decoded from the front by ffmpeg itself."""
    command = ["ffmpeg", "-v", "error", "-i", path, "-map", f"0:v:{stream}", "-vsync", "passthrough"]
    pixels = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run([*command, *pixels], capture_output=True, check=True, timeout=60).stdout
    return torch.from_numpy(np.frombuffer(raw, np.uint8).copy()).view(-1, *size, 3).permute(0, 3, 1, 2)
