"""Episodes to files and references: only whole files are referred to, whatever happens."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from clients import VideoEncoding, VideoWriter
from replay_service import LayoutError, LazyTensorStorage, ReplayTimeoutError, TensorDictReplayBuffer, VideoClipRef
from tests.source_tree import ROOT
from tests.video_files import drawn, needs_video

LOSSLESS = VideoEncoding(codec="libx264rgb", quality=0, pixel_format="rgb24", suffix=".mkv")
STEP = {"action": 1, "next": {"reward": [0.5], "done": [False]}}


class Refusing:
    """A buffer that takes nothing."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def extend(self, data: Any) -> Any:
        raise self._error


def _buffer() -> TensorDictReplayBuffer:
    made: TensorDictReplayBuffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=4)
    return made


@needs_video
def test_steps_refer_to_their_frames_and_to_the_next_ones(tmp_path: Path) -> None:
    buffer = _buffer()
    with VideoWriter(
        buffer, tmp_path / "new", next_frame_key=("next", "frame"), encoding=LOSSLESS, frame_rate=10
    ) as writer:
        for seed, length in ((0, 7), (1, 12)):
            frames = drawn(length + 1, seed=seed)
            for step in range(length):
                assert len(writer) == step
                row = {**STEP, "next": {**STEP["next"], "done": [step == length - 1]}}  # type: ignore[dict-item]
                writer.append(frames[step].permute(1, 2, 0).numpy(), row)
            slots = writer.end_episode(frames[-1])
            assert slots is not None
            assert slots.numel() == length
            stored = buffer[slots]
            assert torch.equal(stored["frame"].decode(), frames[:-1])
            assert torch.equal(stored["next", "frame"].decode(), frames[1:])
            assert Path(stored["frame"].source).is_absolute()
    assert len(buffer) == 19
    assert len(list((tmp_path / "new").iterdir())) == 2
    assert torch.equal(VideoClipRef.from_timestamps(buffer[0]["frame"].source, [0.3]).frame_index, torch.tensor([3]))


@needs_video
def test_all_stays_on_the_cpu_whatever_torchs_default_device_is(tmp_path: Path) -> None:
    frames = drawn(5)
    with torch.device("meta"):
        buffer = _buffer()
        with VideoWriter(buffer, tmp_path, encoding=LOSSLESS) as writer:
            for frame in frames:
                writer.append(frame, STEP)
            writer.end_episode()
        stored = buffer[:]
        decoded = [stored["frame"].decode(), stored["frame"][3].decode(), stored["frame"].rebin(2).decode()]
        timed = VideoClipRef.from_timestamps(stored["frame"].source, [0.1]).decode()
        counted = VideoClipRef(stored["frame"].source)
    assert torch.equal(decoded[0], frames)
    assert {part.device.type for part in [*decoded, timed, counted.file_id, stored["action"]]} == {"cpu"}


@needs_video
def test_nothing_is_stored_before_the_episode_ends(tmp_path: Path) -> None:
    buffer = _buffer()
    writer = VideoWriter(buffer, tmp_path)
    assert writer.end_episode() is None
    for frame in drawn(5):
        writer.append(frame, TensorDict(STEP))
    assert len(buffer) == 0
    assert all(".part." in path.name for path in tmp_path.iterdir())
    writer.discard_episode()
    assert list(tmp_path.iterdir()) == []
    writer.append(drawn(1)[0], STEP)
    writer.close()
    writer.close()
    assert (len(buffer), list(tmp_path.iterdir())) == (0, [])
    with pytest.raises(ValueError, match="closed"):
        writer.append(drawn(1)[0], STEP)


@needs_video
def test_refused_steps_leave_the_episode_as_it_was(tmp_path: Path) -> None:
    buffer = _buffer()
    writer = VideoWriter(buffer, tmp_path, next_frame_key=("next", "frame"), encoding=LOSSLESS)
    frames = drawn(3)
    writer.append(frames[0], STEP)
    wrong: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: writer.append(frames[0].float(), STEP), TypeError, "uint8"),
        (lambda: writer.append(drawn(1, 16, 16)[0], STEP), ValueError, "size of the first"),
        (lambda: writer.append(frames[0], {"action": 1}), ValueError, "entries"),
        (lambda: writer.append(frames[0], {**STEP, "action": 1.5}), ValueError, "action"),
        (lambda: writer.append(frames[0], {**STEP, "frame": 1}), ValueError, "entry frame"),
        (lambda: writer.append(frames[0], TensorDict({}, [2])), ValueError, "batch dimensions"),
        (lambda: writer.end_episode(), ValueError, "last_frame"),
        (lambda: writer.end_episode(drawn(1, 16, 16)[0]), ValueError, "size of the first"),
    ]
    for call, kind, words in wrong:
        with pytest.raises(kind, match=words):
            call()
    writer.append(frames[1], STEP)
    writer.end_episode(frames[2])
    assert torch.equal(buffer[:]["frame"].decode(), frames[:2])
    plain = VideoWriter(buffer, tmp_path)
    plain.append(frames[0], STEP)
    with pytest.raises(ValueError, match="last_frame"):
        plain.end_episode(frames[1])


@needs_video
@pytest.mark.parametrize(("error", "files"), [(LayoutError("no"), 0), (ReplayTimeoutError("late"), 1)])
def test_a_file_goes_only_if_nothing_can_refer_to_it(tmp_path: Path, error: Exception, files: int) -> None:
    writer = VideoWriter(Refusing(error), tmp_path)
    writer.append(drawn(1)[0], STEP)
    with pytest.raises(type(error)):
        writer.end_episode()
    assert len(list(tmp_path.iterdir())) == files
    assert len(writer) == 0


@pytest.mark.parametrize(
    ("settings", "kind"),
    [({"frame_rate": 0}, ValueError), ({"frame_key": 3}, TypeError), ({"next_frame_key": ()}, TypeError)],
)
def test_settings_that_are_none(tmp_path: Path, settings: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind, match=next(iter(settings))):
        VideoWriter(_buffer(), tmp_path, **settings)


def test_a_buffer_must_take_rows(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="extend"):
        VideoWriter(object(), tmp_path)


COLLECTOR = """
import os, pickle, sys
from clients import VideoWriter
from tests.video_files import drawn

class Log:
    def extend(self, rows):
        with open(sys.argv[2], "ab") as file:
            pickle.dump(rows, file)
            file.flush()
            os.fsync(file.fileno())

writer = VideoWriter(Log(), sys.argv[1])
for episode in range(1000):
    for step, frame in enumerate(drawn(30, seed=episode)):
        writer.append(frame, {"step": step})
        if episode == 2 and step == 20:
            print("in the middle", flush=True)
            sys.stdin.read()
    writer.end_episode()
"""


@needs_video
def test_a_collector_that_is_killed_leaves_no_reference_to_what_cannot_be_read(tmp_path: Path) -> None:
    folder, log = tmp_path / "files", tmp_path / "log"
    process = subprocess.Popen(
        [sys.executable, "-c", COLLECTOR, str(folder), str(log)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "in the middle"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    with open(log, "rb") as file:
        episodes = [pickle.load(file), pickle.load(file)]
        assert file.read() == b""
    for rows in episodes:
        assert rows["frame"].decode().shape == (30, 3, 32, 48)
    names = sorted(path.name for path in folder.iterdir())
    assert sum(".part." in name for name in names) == len(names) - 2 == 1
