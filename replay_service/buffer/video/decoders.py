"""Open decoders: as many as the cache of this process keeps, each used by one thread at a time.

torchcodec is imported when the first file is opened, so that buffers of references need neither it nor FFmpeg.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "DecoderCache",
    "OpenVideo",
    "clear_video_decoder_cache",
    "open_video",
    "require_torchcodec",
    "set_video_decoder_cache_size",
]

DEFAULT_CACHE_SIZE = 32
TIMES_AT_ONCE = 64
"""Frames decoded together to learn their times: bounds the memory that takes."""


class OpenVideo:
    """One stream of a file, open.

    Args:
        path: the file.
        stream: which stream; None for the best video stream.

    Attributes:
        num_frames: frames of the stream, counted, not estimated.
        size: height and width.
        duration_s: seconds from the beginning of the first frame to the end of the last one.

    Raises:
        ImportError: torchcodec is not installed, or it finds no FFmpeg.
        FileNotFoundError: there is no such file.
        ValueError: the file is no video, or has no such stream.
    """

    def __init__(self, path: str, stream: int | None) -> None:
        self.path = path
        self._decoder = _opened(path, stream)
        self._lock = threading.Lock()
        self._times: Tensor | None = None
        described = self._decoder.metadata
        self.num_frames: int = int(described.num_frames or 0)
        self.size: tuple[int, int] = (described.height, described.width)
        begin, end = described.begin_stream_seconds or 0.0, described.end_stream_seconds or 0.0
        self.duration_s: float = float(end - begin)
        self._begin_s = begin

    def read(self, frames: list[int], runs: list[tuple[int, int]]) -> list[Tensor]:
        """Frames, ascending and each once, as uint8 `[m, C, H, W]` one part after the other; `runs` says which of them are neighbours.

        Raises:
            ValueError: the file breaks off or is damaged.
        """
        try:
            with self._lock:
                if len(runs) == len(frames):  # single ones, asked for together
                    return [self._decoder.get_frames_at(torch.tensor(frames, device="cpu")).data]
                return [self._decoder.get_frames_in_range(*run).data for run in runs]
        except (RuntimeError, IndexError) as error:
            raise ValueError(f"source ({self.path!r}) must be a whole video; {_first_line(error)}") from error

    def times(self, frames: Tensor | None = None) -> Tensor:
        """When frames are shown, in seconds from the beginning of the stream, float64 `[n]`.

        They are decoded for it, since containers do not say it of every frame; all of them at most once.

        Args:
            frames: frame numbers int64 `[n]`, ascending and each once; None for all.

        Raises:
            ValueError: the file breaks off or is damaged.
        """
        with self._lock:
            if self._times is None:
                found = self._shown_at(torch.arange(self.num_frames, device="cpu") if frames is None else frames)
                if frames is not None:
                    return found
                self._times = found
            return self._times if frames is None else self._times[frames]

    def _shown_at(self, frames: Tensor) -> Tensor:
        """The times of frames, decoded a few at a time."""
        try:
            parts = [self._decoder.get_frames_at(part).pts_seconds for part in torch.split(frames, TIMES_AT_ONCE)]
        except (RuntimeError, IndexError) as error:
            raise ValueError(f"source ({self.path!r}) must be a whole video; {_first_line(error)}") from error
        return torch.cat(parts) - self._begin_s


class DecoderCache:
    """The decoders that are open in this process; of more than `size`, the least recently used one is closed.

    A forked process begins with an empty cache: an open file's position would be shared with the parent.

    Args:
        size: decoders kept open.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._open: OrderedDict[tuple[str, int | None], tuple[Any, OpenVideo]] = OrderedDict()
        self._parents: list[Any] = []
        self._lock = threading.Lock()

    def get(self, path: str, stream: int | None) -> OpenVideo:
        """The decoder of a file, opened if it is not open or if the file was replaced since."""
        key, stamp = (path, stream), _stamp_of(path)
        with self._lock:
            known = self._open.get(key)
            if known is not None and known[0] == stamp:
                self._open.move_to_end(key)
                return known[1]
        # Outside the lock: a slow file must not hold up those that are open. Two threads may open the same one; the last stays.
        opened = OpenVideo(path, stream)
        with self._lock:
            self._open[key] = (stamp, opened)
            self._open.move_to_end(key)
            self._shrink()
        return opened

    def resize(self, size: int) -> None:
        """Keeps `size` decoders from now on."""
        with self._lock:
            self.size = size
            self._shrink()

    def clear(self) -> None:
        """Closes all decoders; one that a thread is using, when that is done."""
        with self._lock:
            self._open.clear()

    def restart(self) -> None:
        """Is called in a forked process."""
        # Not closed here: a decoder's threads have stayed with the parent, and closing would wait for them.
        self._parents.append(self._open)
        self._open, self._lock = OrderedDict(), threading.Lock()

    def __len__(self) -> int:
        return len(self._open)

    def _shrink(self) -> None:
        while len(self._open) > self.size:
            self._open.popitem(last=False)


CACHE = DecoderCache(DEFAULT_CACHE_SIZE)

os.register_at_fork(after_in_child=CACHE.restart)


def open_video(path: str, stream: int | None = None) -> OpenVideo:
    """The decoder of a file, from the cache of this process.

    Raises:
        ImportError, FileNotFoundError, ValueError: as `OpenVideo`.
    """
    return CACHE.get(path, stream)


def set_video_decoder_cache_size(maxsize: int) -> None:
    """Sets how many decoders this process keeps open, 32 at first; 0 opens a file for every read.

    Raises:
        TypeError: no integer.
        ValueError: a negative number.
    """
    if isinstance(maxsize, bool) or not isinstance(maxsize, int):
        raise TypeError(f"maxsize ({maxsize!r}) must be an integer; got {type(maxsize).__name__}")
    if maxsize < 0:
        raise ValueError(f"maxsize ({maxsize}) must not be negative")
    CACHE.resize(maxsize)


def clear_video_decoder_cache() -> None:
    """Closes all decoders that this process keeps open."""
    CACHE.clear()


def _stamp_of(path: str) -> Any:
    """What changes when a file is replaced; None for what is no file of this machine.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if "://" in path:
        return None
    try:
        found = os.stat(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"source ({path!r}) must be a file that exists here") from error
    return found.st_ino, found.st_size, found.st_mtime_ns


def _opened(path: str, stream: int | None) -> Any:
    """torchcodec's decoder, which has counted the frames of the stream."""
    kind = require_torchcodec()
    try:
        return kind.VideoDecoder(path, stream_index=stream, seek_mode="exact", device="cpu")
    except ValueError as error:  # no such stream
        raise ValueError(f"stream ({stream}) must be a video stream of {path!r}; {_first_line(error)}") from error
    except RuntimeError as error:
        raise ValueError(f"source ({path!r}) must be a video; {_first_line(error)}") from error


def require_torchcodec() -> Any:
    """The module of torchcodec's decoders, imported when it is first asked for.

    Raises:
        ImportError: torchcodec is not installed, or finds no FFmpeg; what to install is said.
    """
    try:
        return importlib.import_module("torchcodec.decoders")
    except ModuleNotFoundError as error:
        raise ImportError(
            "torchcodec must be installed to read or write video; pip install 'replay-service[video]' brings it"
        ) from error
    except (RuntimeError, OSError) as error:  # what it says when it cannot load FFmpeg's libraries
        raise ImportError(
            "FFmpeg's libraries must be installed for torchcodec to read or write video; apt-get install ffmpeg (or conda install "
            "ffmpeg) brings them"
        ) from error


def _first_line(error: Exception) -> str:
    """What torchcodec says, without the place in its own code that it puts in front."""
    text = (str(error).splitlines() or [type(error).__name__])[0]
    return text.rpartition(".cpp:")[2].partition(", ")[2] or text
