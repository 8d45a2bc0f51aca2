"""A video file that is being written: it gets its name only when it is whole, so that whoever sees it can read it."""

from __future__ import annotations

import contextlib
import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from replay_service.buffer.video.decoders import OpenVideo, require_torchcodec

__all__ = ["VideoEncoding", "VideoFile", "as_frame"]

PART = ".part"


@dataclass(frozen=True)
class VideoEncoding:
    """How frames are encoded.

    Attributes:
        codec: FFmpeg's encoder.
        quality: its `crf`: 0 is the best, 51 the worst with the default codec.
        preset: its speed; slower ones make smaller files.
        keyframe_interval: every so many frames one that is whole by itself. A frame is decoded from the last of those before it: smaller
            numbers make single frames cheaper to read, and files larger.
        pixel_format: None takes `yuv420p`, which halves the resolution of colour, and `yuv444p` for frames of odd height or width.
        suffix: the container, by the end of the file's name.
    """

    codec: str = "libx264"
    quality: float = 20
    preset: str = "veryfast"
    keyframe_interval: int = 16
    pixel_format: str | None = None
    suffix: str = ".mp4"

    def __post_init__(self) -> None:
        if isinstance(self.keyframe_interval, bool) or not isinstance(self.keyframe_interval, int):
            raise TypeError(f"keyframe_interval ({self.keyframe_interval!r}) must be an integer")
        if self.keyframe_interval < 1:
            raise ValueError(f"keyframe_interval ({self.keyframe_interval}) must be positive")
        if not self.suffix.startswith("."):
            raise ValueError(f"suffix ({self.suffix!r}) must begin with a dot")

    def options(self, height: int, width: int) -> dict[str, Any]:
        """The arguments of torchcodec's `Encoder.add_video`."""
        even = height % 2 == 0 and width % 2 == 0
        return {
            "codec": self.codec,
            "crf": self.quality,
            "preset": self.preset,
            "pixel_format": self.pixel_format or ("yuv420p" if even else "yuv444p"),
            # Without frames that lean on later ones: these save little here and make every seek decode more.
            "extra_options": {"g": self.keyframe_interval, "bf": 0},
        }


class VideoFile:
    """One file. Frames go to `NAME.part.SUFFIX` until `finish`, which renames it.

    Args:
        path: the finished file; its folder must exist.
        frame_rate: frames per second.
        encoding: how they are encoded.

    Attributes:
        frames: how many were appended.
    """

    def __init__(self, path: Path, frame_rate: float, encoding: VideoEncoding) -> None:
        self.path = path
        self.frames = 0
        self._part = path.with_name(f"{path.stem}{PART}{path.suffix}")
        self._frame_rate = frame_rate
        self._encoding = encoding
        self._encoder: Any = None
        self._stream: Any = None
        self._size: tuple[int, ...] = ()

    def append(self, frame: Tensor) -> None:
        """Encodes one more frame uint8 `[3, H, W]`; the first one fixes the size.

        Raises:
            ImportError: torchcodec or FFmpeg is not installed.
            ValueError: a frame of another size, or an encoding that FFmpeg does not know.
            OSError: the file cannot be written.
        """
        if self._stream is None:
            self._open(*frame.shape[1:])
            self._size = tuple(frame.shape)
        elif tuple(frame.shape) != self._size:
            raise ValueError(f"frame ({list(frame.shape)}) must have the size of the first one: {list(self._size)}")
        try:
            self._stream.add_frames(frame.unsqueeze(0))
        except RuntimeError as error:
            raise OSError(f"file ({str(self.path)!r}) must take frame {self.frames}; {_said(error)}") from error
        self.frames += 1

    def finish(self) -> None:
        """Closes the file, looks whether it can be read and has all frames, brings it to the disk, and gives it its name.

        Raises:
            OSError: it is not whole; it is removed.
        """
        try:
            self._encoder.close()
            found = OpenVideo(str(self._part), None).num_frames
            if found != self.frames:
                raise OSError(f"file ({str(self.path)!r}) must have all {self.frames} frames; got {found}")
            _flush(self._part)
            os.replace(self._part, self.path)
            _flush(self.path.parent)
        except (RuntimeError, ValueError, OSError) as error:
            self.discard()
            if isinstance(error, OSError):
                raise
            raise OSError(f"file ({str(self.path)!r}) must be written whole; {_said(error)}") from error

    def discard(self) -> None:
        """Gives the file up."""
        with contextlib.suppress(RuntimeError):  # closed already, or not opened
            if self._encoder is not None:
                self._encoder.close()
        self._encoder = self._stream = None
        self._part.unlink(missing_ok=True)

    def _open(self, height: int, width: int) -> None:
        encoder = _encoder_class()()
        try:
            self._stream = encoder.add_video(
                height=height,
                width=width,
                frame_rate=self._frame_rate,
                device="cpu",
                **self._encoding.options(height, width),
            )
            encoder.open_file(str(self._part))
        except RuntimeError as error:
            self._stream = None
            self._part.unlink(missing_ok=True)
            raise ValueError(
                f"encoding ({self._encoding}) must suit {height}×{width} frames; {_said(error)}"
            ) from error
        self._encoder = encoder


def as_frame(frame: Any) -> Tensor:
    """A frame as uint8 `[3, H, W]`.

    Args:
        frame: array or tensor uint8 `[H, W, 3]`, as environments render it, or `[3, H, W]`.

    Raises:
        TypeError: not uint8.
        ValueError: another shape.
    """
    given = frame if isinstance(frame, Tensor) else torch.from_numpy(np.ascontiguousarray(frame))
    if given.dtype != torch.uint8:
        raise TypeError(f"frame must be uint8; got {str(given.dtype).removeprefix('torch.')}")
    if given.ndim == 3 and given.shape[2] == 3 and given.shape[1] > 3:
        given = given.permute(2, 0, 1)
    if given.ndim != 3 or given.shape[0] != 3 or 0 in given.shape:
        raise ValueError(f"frame ({list(given.shape)}) must be [H, W, 3] or [3, H, W]")
    return given.cpu()


def _encoder_class() -> Any:
    """torchcodec's class of encoders.

    Raises:
        ImportError: it is not installed, or finds no FFmpeg.
    """
    require_torchcodec()
    return importlib.import_module("torchcodec.encoders").Encoder


def _flush(path: Path) -> None:
    """Waits until the disk has a file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _said(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
