"""References to frames of video files: what a buffer stores instead of frames."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorClass, TensorDict
from torch import Tensor

from replay_service.buffer.counts import positive_integer
from replay_service.buffer.video.addresses import Device, compact, flat_array, integers, numbers_of
from replay_service.buffer.video.bins import binned
from replay_service.buffer.video.decoders import open_video
from replay_service.buffer.video.decoding import decoded
from replay_service.buffer.video.runs import readings
from replay_service.buffer.video.source import Source, path_of, source_of
from replay_service.buffer.video.times import nearest_frames
from replay_service.sources import SOURCES, words_of_numbers

__all__ = ["VideoClipRef"]

Ints = NDArray[np.int64]


class VideoClipRef(TensorClass):
    """Frames of one or several video files, by address: nothing is decoded before `decode`.

    The batch dimensions are the frames, and a reference is indexed, stacked, stored and sent like a tensor of them. It holds no open
    file. A frame takes 16 bytes: its place in its file, and a number that stands for the file and for how it is read
    (`replay_service.sources`), so that references of any files can be put side by side.

    Args:
        sources: the file, or a tuple of files.
        frame_index: integers of any shape, each the place of a frame in its own file. None: all frames of the file (which is opened).
        file_id: integers of the same shape, each the place of the frame's file in `sources`. None: the first one.
        stream: the video stream; None for the best one.
        auto_decode: let `ref[…]` give frames instead of a reference; for looking at clips, not for what a buffer holds.
        out_device, out_dtype: where and as what frames come out of `decode`; None: on the reference's own device, as uint8.

    Attributes:
        frame_index: int64, as given.
        file_number: int64, the number that stands for the file of each frame.

    Raises:
        TypeError: a path is none, or indices are no integers.
        ValueError: shapes differ, an index is negative, or `frame_index` is missing with several files.
        FileNotFoundError, ImportError: as `decode`, if the file has to be opened.
    """

    frame_index: Tensor
    file_number: Tensor

    def __init__(
        self,
        sources: Any,
        frame_index: Any = None,
        file_id: Any = None,
        *,
        stream: int | None = None,
        auto_decode: bool = False,
        out_device: Device = None,
        out_dtype: torch.dtype | None = None,
    ) -> None:
        paths = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
        if not paths:
            raise ValueError("sources must name at least one file")
        numbers = numbers_of(paths, stream, auto_decode, out_device, out_dtype)
        if frame_index is None:
            if len(paths) > 1:
                raise ValueError(f"frame_index must be given with {len(paths)} sources: from_files takes whole files")
            frame_index = torch.arange(open_video(path_of(paths[0]), stream).num_frames, device="cpu")
        index = integers("frame_index", frame_index)
        places = torch.zeros_like(index) if file_id is None else integers("file_id", file_id)
        if places.shape != index.shape:
            raise ValueError(f"file_id ({list(places.shape)}) must have the shape of frame_index: {list(index.shape)}")
        if places.numel() and int(places.max()) >= len(paths):
            raise ValueError(f"file_id ({int(places.max())}) must be in [0, {len(paths)}), the number of sources")
        self.batch_size = index.shape
        self.frame_index = index
        self.file_number = numbers.to(index.device)[places]

    # -- making references ------------------------------------------------------------------------------------------

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str],
        *,
        stream: int | None = None,
        num_frames: int | None = None,
        frame_index: Any = None,
        num_bins: int | None = None,
        frames_per_bin: int | None = None,
        auto_decode: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> VideoClipRef:
        """A reference to the frames of one file.

        Args:
            path: the file. Whoever decodes opens it under this name: make it absolute if that is another process.
            stream: the video stream; None for the best one.
            num_frames: how many frames it has; None opens the file and counts.
            frame_index: the frames to refer to, integers of any shape; None for all of them.
            num_bins, frames_per_bin: as `rebin`, of all frames.
            auto_decode, device, dtype: as the constructor's `auto_decode`, `out_device` and `out_dtype`.

        Returns:
            a reference `[num_frames]`, of the shape of `frame_index`, or as `rebin` gives it.

        Raises:
            ValueError: arguments that exclude each other.
            FileNotFoundError, ValueError, ImportError: as `decode`, if the file has to be opened.
        """
        if frame_index is not None and num_bins is not None:
            raise ValueError("frame_index and num_bins must not be given together")
        if frame_index is None and num_frames is not None:
            frame_index = torch.arange(positive_integer(num_frames, "num_frames"), device="cpu")
        made = cls((path,), frame_index, stream=stream, auto_decode=auto_decode, out_device=device, out_dtype=dtype)
        return _binned(made, num_bins, frames_per_bin)

    @classmethod
    def from_files(
        cls,
        paths: Iterable[str | os.PathLike[str]],
        *,
        num_frames_per_file: int | Sequence[int] | None = None,
        num_bins: int | None = None,
        frames_per_bin: int | None = None,
        stream: int | None = None,
        auto_decode: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> VideoClipRef:
        """A reference to the frames of several files as one sequence, in the order of `paths`.

        Args:
            paths: the files.
            num_frames_per_file: how many frames each has, or one number for all; None opens every file and counts.
            num_bins, frames_per_bin: as `rebin`, of all frames of all files.
            stream, auto_decode, device, dtype: as `from_file`, for every file.

        Returns:
            a reference `[frames of all files]`, or as `rebin` gives it.

        Raises:
            ValueError: no path, or not as many counts as paths.
            FileNotFoundError, ValueError, ImportError: as `decode`, if files have to be opened.
        """
        files = [path_of(path) for path in paths]
        if not files:
            raise ValueError("paths must name at least one file")
        if num_frames_per_file is None:
            counts = [open_video(file, stream).num_frames for file in files]
        elif isinstance(num_frames_per_file, Sequence | Tensor | np.ndarray):
            counts = [int(count) for count in num_frames_per_file]
        else:
            counts = [positive_integer(num_frames_per_file, "num_frames_per_file")] * len(files)
        if len(counts) != len(files) or min(counts) < 0:
            raise ValueError(
                f"num_frames_per_file ({len(counts)} counts) must give a count for each of {len(files)} paths"
            )
        lengths = np.asarray(counts)
        begins = np.cumsum(lengths) - lengths
        frames = np.arange(lengths.sum()) - np.repeat(begins, lengths)
        made = cls(
            files,
            torch.from_numpy(frames),
            torch.from_numpy(np.repeat(np.arange(len(files)), lengths)),
            stream=stream,
            auto_decode=auto_decode,
            out_device=device,
            out_dtype=dtype,
        )
        return _binned(made, num_bins, frames_per_bin)

    @classmethod
    def from_timestamps(
        cls,
        path: str | os.PathLike[str],
        timestamps: Any,
        *,
        stream: int | None = None,
        fps: float | None = None,
        auto_decode: bool = False,
        device: Device = None,
        dtype: torch.dtype | None = None,
    ) -> VideoClipRef:
        """A reference to the frame nearest to each time, for signals that come at another rate than frames.

        Args:
            path: the file, which is opened.
            timestamps: seconds from the beginning of the stream, of any shape.
            fps: frames per second of a stream that is known to be steady. None: the times of its frames are read from the file, which
                also suits a variable rate. A few frames around each time are decoded for that; of an unsteady stream all, once.
            stream, auto_decode, device, dtype: as `from_file`.

        Returns:
            a reference of the shape of `timestamps`.

        Raises:
            ValueError: a time is negative, beyond the end of the last frame, or no number.
            FileNotFoundError, ValueError, ImportError: as `decode`.
        """
        frames = nearest_frames(open_video(path_of(path), stream), timestamps, fps)
        return cls((path,), frames, stream=stream, auto_decode=auto_decode, out_device=device, out_dtype=dtype)

    def rebin(self, num_bins: int, frames_per_bin: int | None = None) -> VideoClipRef:
        """The frames that stand for `num_bins` bins, which part the reference's frames without overlap.

        Args:
            num_bins: the number of bins.
            frames_per_bin: frames of each bin, evenly spread over it; None takes the one in its middle.

        Returns:
            a reference `[num_bins]` or `[num_bins, frames_per_bin]`; it decodes to `[num_bins, C, H, W]` or
            `[num_bins, frames_per_bin, C, H, W]`.

        Raises:
            TypeError, ValueError: a number is no positive integer, or the reference has no frames.
        """
        places = torch.from_numpy(binned(self.frame_index.numel(), num_bins, frames_per_bin))
        places = places.to(self.frame_index.device)
        return _made(self.frame_index.reshape(-1)[places], self.file_number.reshape(-1)[places])

    # -- what a reference says --------------------------------------------------------------------------------------

    @property
    def sources(self) -> tuple[str, ...]:
        """The files that the frames are of, each once, in the order in which they come first."""
        return tuple(self._by_path())

    @property
    def file_id(self) -> Tensor:
        """The place of each frame's file in `sources`, int64, of the reference's shape."""
        made = np.empty(self.file_number.numel(), np.int64)
        for place, rows in enumerate(self._by_path().values()):
            made[np.concatenate(rows)] = place
        return torch.from_numpy(made).reshape(self.file_number.shape).to(self.file_number.device)

    @property
    def source(self) -> str | list[str]:
        """The file; of several, a list with the file of each frame."""
        paths = self.sources
        return paths[0] if len(paths) == 1 else [paths[place] for place in self.file_id.reshape(-1).tolist()]

    @property
    def stream(self) -> int | None:
        """The stream that was asked for (of the first frame)."""
        return self._setting().stream

    @property
    def auto_decode(self) -> bool:
        """Whether `ref[…]` gives frames (as the first frame's file was given)."""
        return self._setting().auto_decode

    @property
    def out_device(self) -> torch.device | None:
        """Where frames come out of `decode`, if that was said."""
        device = self._setting().device
        return None if device is None else torch.device(device)

    @property
    def out_dtype(self) -> torch.dtype | None:
        """As what frames come out of `decode`, if that was said."""
        return self._setting().torch_dtype

    # -- frames -----------------------------------------------------------------------------------------------------

    def decode(self, *, device: Device = None, dtype: torch.dtype | None = None) -> Tensor:
        """The frames themselves.

        Frames of a file are read together, each once, neighbours as one range; they are decoded on the CPU.

        Args:
            device: where they come out; None: `out_device`, or where the reference lies.
            dtype: as what; None: `out_dtype`, or uint8. Values stay those of uint8, 0 to 255.

        Returns:
            `[*batch, C, H, W]`, in the order of the reference.

        Raises:
            ImportError: torchcodec or FFmpeg is not installed; what to install is said.
            FileNotFoundError: a file is missing; it and the rows concerned are named, as in all that follow.
            IndexError: a frame number is out of the range of its file.
            ValueError: a file is no video, is damaged, or has frames of another size than the others.
            LookupError: this process was not told what a file number stands for.
        """
        numbers, index = flat_array(self.file_number), flat_array(self.frame_index)
        frames = decoded(numbers, index)
        frames = frames.reshape(*self.batch_size, *frames.shape[1:])
        target = device or self.out_device or self.frame_index.device
        return frames.to(device=target, dtype=dtype or self.out_dtype or torch.uint8)

    @property
    def frames(self) -> Tensor:
        """As `decode()`."""
        return self.decode()

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        return part.decode() if isinstance(part, VideoClipRef) and part.auto_decode else part

    def __reduce__(self) -> tuple[Any, ...]:
        # The process that this is unpickled in may not have met the files.
        words = words_of_numbers(self.file_number)
        return _unpickled, (words, compact(self.frame_index), compact(self.file_number), self.batch_size)

    # -- inner ------------------------------------------------------------------------------------------------------

    def _by_path(self) -> dict[str, list[Ints]]:
        """The rows of every path."""
        found: dict[str, list[Ints]] = {}
        for number, rows in readings(flat_array(self.file_number)):
            found.setdefault(source_of(number).path, []).append(rows)
        return found

    def _setting(self) -> Source:
        """How the first frame's file is read."""
        if self.file_number.numel() == 0:
            return Source("")
        return source_of(int(self.file_number.reshape(-1)[0]))


def _made(frame_index: Tensor, file_number: Tensor, batch: torch.Size | None = None) -> VideoClipRef:
    fields = {"frame_index": frame_index, "file_number": file_number}
    made: VideoClipRef = VideoClipRef.from_tensordict(TensorDict(fields, frame_index.shape if batch is None else batch))
    return made


def _unpickled(words: list[str], frame_index: Tensor, file_number: Tensor, batch: torch.Size) -> VideoClipRef:
    SOURCES.add(words)
    return _made(frame_index, file_number, batch)


def _binned(ref: VideoClipRef, num_bins: int | None, frames_per_bin: int | None) -> VideoClipRef:
    if num_bins is None:
        if frames_per_bin is not None:
            raise ValueError(f"frames_per_bin ({frames_per_bin}) must come with num_bins")
        return ref
    return ref.rebin(num_bins, frames_per_bin)
