"""Episodes whose frames go to video files and whose steps go to a buffer, with references in the place of frames."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from clients.video_file import VideoEncoding, VideoFile, as_frame
from replay_service.buffer.video.clip import VideoClipRef
from replay_service.errors import LayoutError, key_name
from replay_service.specs import Key

__all__ = ["VideoWriter"]


class VideoWriter:
    """Writes one file per episode, and extends a buffer with the episode's steps when that file is whole.

    Frames are encoded as they come and are not kept. While an episode goes on nothing refers to its file: it has a name of its own
    (`….part.mp4`) that no record ever has, and if the process ends, that is all that stays behind.

        with VideoWriter(client, "/shared/episodes", next_frame_key=("next", "frame")) as writer:
            for _ in range(episodes):
                observation, _ = env.reset()
                done = False
                while not done:
                    frame, action = env.render(), policy(observation)
                    observation, reward, terminated, truncated, _ = env.step(action)
                    done = terminated or truncated
                    writer.append(frame, {"action": action, "next": {"reward": [reward], "done": [done]}})
                writer.end_episode(env.render())

    One writer writes one episode at a time; several may share a folder and a buffer. It is not for several threads.

    Args:
        buffer: a handle or a buffer, anything with `extend`.
        folder: where files go; it is made if it is missing. Whoever decodes must see it under the same, absolute name.
        frame_key: the entry that refers to a step's frame.
        next_frame_key: the entry that refers to the frame after it, for example `("next", "frame")`: 16 bytes more and no pixels. None:
            there is none.
        frame_rate: frames per second of the files; only `VideoClipRef.from_timestamps` and players look at it.
        encoding: how frames are encoded.

    Raises:
        TypeError: `buffer` has no `extend`, or a key is none.
        ValueError: `frame_rate` is not positive.
    """

    def __init__(
        self,
        buffer: Any,
        folder: str | Path,
        *,
        frame_key: str | Key = "frame",
        next_frame_key: str | Key | None = None,
        frame_rate: float = 30.0,
        encoding: VideoEncoding | None = None,
    ) -> None:
        if not callable(getattr(buffer, "extend", None)):
            raise TypeError(f"buffer ({type(buffer).__name__}) must have extend")
        if not frame_rate > 0:
            raise ValueError(f"frame_rate ({frame_rate}) must be positive")
        self._buffer = buffer
        self.folder = Path(folder).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._frame_key = _key("frame_key", frame_key)
        self._next_frame_key = None if next_frame_key is None else _key("next_frame_key", next_frame_key)
        self._frame_rate = float(frame_rate)
        self._encoding = encoding or VideoEncoding()
        self._file: VideoFile | None = None
        self._steps: list[TensorDictBase] = []
        self._closed = False

    def __len__(self) -> int:
        """Steps of the episode that goes on."""
        return len(self._steps)

    def append(self, frame: Any, step: TensorDictBase | dict[str, Any]) -> None:
        """Adds a step to the episode; the first one begins it.

        Args:
            frame: what was seen before the step, uint8 `[H, W, 3]` or `[3, H, W]`; of one size throughout an episode.
            step: what else is to be stored, without a leading dimension: a TensorDict `[]`, or a dict of what tensors can be made of.

        Raises:
            TypeError, ValueError: a frame of another kind or size, a step that has the entries of frames itself, or a step with other
            entries than the episode's first.
            ImportError: torchcodec or FFmpeg is not installed.
            OSError: the file cannot be written. After this and all others, the episode is as before the call.
        """
        self._require_open()
        row = step if isinstance(step, TensorDictBase) else _row(step)
        if row.batch_dims:
            raise ValueError(f"step ({list(row.batch_size)}) must be a single one, without batch dimensions")
        for key in filter(None, (self._frame_key, self._next_frame_key)):
            if row.get(key, None) is not None:
                raise ValueError(f"step must not have the entry {key_name(key)}, which refers to its frame")
        if self._steps:
            _require_alike(row, self._steps[0])
        self._opened().append(as_frame(frame))
        self._steps.append(row.clone())

    def end_episode(self, last_frame: Any = None) -> Tensor | None:
        """Closes the episode's file and extends the buffer with its steps.

        Args:
            last_frame: what was seen after the last step; needed with `next_frame_key`.

        Returns:
            what `buffer.extend` returns; None for an episode without steps.

        Raises:
            ValueError: `last_frame` is missing, or comes without `next_frame_key`; the episode goes on.
            OSError: the file could not be written whole; the episode is lost, and nothing refers to it.
            Exception: what `extend` raises. The file stays, since steps may have arrived though no answer did, unless the buffer says
                that they do not fit (`LayoutError`).
        """
        self._require_open()
        if not self._steps:
            return None
        if (last_frame is None) != (self._next_frame_key is None):
            raise ValueError("last_frame must be given with next_frame_key, and only then")
        file, steps = self._opened(), self._steps
        if last_frame is not None:
            file.append(as_frame(last_frame))
        self._file, self._steps = None, []
        file.finish()
        rows: Any = torch.stack(steps)  # type: ignore[arg-type]
        frames = torch.arange(len(steps), device="cpu")
        rows.set(self._frame_key, VideoClipRef(file.path, frames))
        if self._next_frame_key is not None:
            rows.set(self._next_frame_key, VideoClipRef(file.path, frames + 1))
        try:
            slots: Tensor = self._buffer.extend(rows)
        except LayoutError:  # nothing was written
            file.path.unlink(missing_ok=True)
            raise
        return slots

    def discard_episode(self) -> None:
        """Forgets the episode that goes on, and its frames."""
        if self._file is not None:
            self._file.discard()
        self._file, self._steps = None, []

    def close(self) -> None:
        """Ends the writer; an episode that goes on is forgotten. Idempotent."""
        self.discard_episode()
        self._closed = True

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _opened(self) -> VideoFile:
        if self._file is None:
            path = self.folder / f"episode-{uuid.uuid4().hex}{self._encoding.suffix}"
            self._file = VideoFile(path, self._frame_rate, self._encoding)
        return self._file

    def _require_open(self) -> None:
        if self._closed:
            raise ValueError("writer must be open; it was closed")


def _row(step: dict[str, Any]) -> TensorDict:
    """A step as a TensorDict `[]`; numbers and lists become tensors on the CPU, whatever torch's default device is."""
    made = {
        name: _row(value) if isinstance(value, dict) else torch.as_tensor(value, device=_device_of(value))
        for name, value in step.items()
    }
    return TensorDict(made, [])


def _device_of(value: Any) -> torch.device | None:
    return value.device if isinstance(value, Tensor) else torch.device("cpu")


def _require_alike(row: TensorDictBase, first: TensorDictBase) -> None:
    """Raises `ValueError` if a step could not be stored beside the first one."""
    described, wanted = _entries(row), _entries(first)
    if described != wanted:
        raise ValueError(f"step must have the entries of the episode's first: {wanted}; got {described}")


def _entries(row: TensorDictBase) -> dict[str, str]:
    leaves = row.items(include_nested=True, leaves_only=True)
    return {key_name(key): f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}" for key, value in leaves}


def _key(name: str, key: Any) -> Key:
    parts = (key,) if isinstance(key, str) else key
    if not isinstance(parts, tuple) or not parts or not all(isinstance(part, str) for part in parts):
        raise TypeError(f"{name} ({key!r}) must be a string or a tuple of strings")
    return parts
