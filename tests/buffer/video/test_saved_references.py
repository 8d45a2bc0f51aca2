"""References that were saved are understood by a process that has never met their files."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from replay_service import (
    CompressedListStorage,
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    Storage,
    TensorDictReplayBuffer,
    VideoClipRef,
)
from replay_service.buffer.storages.packed_records import pack_record
from tests.source_tree import ROOT

STORAGES: list[type[Storage]] = [
    LazyTensorStorage,
    LazyMemmapStorage,
    ListStorage,
    LazyStackStorage,
    CompressedListStorage,
]
READER = """
import pickle, sys, torch
from pathlib import Path
import replay_service
from replay_service import *
from replay_service.buffer.storages.packed_records import unpack_record
folder = Path(sys.argv[1])
for name in sys.argv[2:]:
    buffer = TensorDictReplayBuffer(storage=getattr(replay_service, name)(20), batch_size=4)
    buffer.loads(folder / name)
    print(name, buffer[:]["frame"].source, buffer[2]["frame"].source)
buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), batch_size=4)
buffer.load_state_dict(torch.load(folder / "state.pt", weights_only=False))
print(buffer.sample()["frame"].batch_size, buffer[:]["frame"].source)
print(pickle.loads((folder / "buffer.pickle").read_bytes())[:]["frame"].source)
print(unpack_record((folder / "record").read_bytes())["frame"].source)
"""


def test_another_process_knows_the_files_of_what_it_loads(tmp_path: Path) -> None:
    tag = tmp_path.name  # no other test has files of these names
    files = [f"{tag}/a.mp4", f"{tag}/b.mp4"]
    frame = VideoClipRef(files, torch.arange(5), torch.tensor([0, 0, 1, 1, 1]))
    data = TensorDict({"frame": frame, "x": torch.arange(5)}, [5])
    for kind in STORAGES:
        buffer = TensorDictReplayBuffer(storage=kind(20), batch_size=4)
        buffer.extend(data)
        buffer.dumps(tmp_path / kind.__name__)
        if kind is LazyTensorStorage:
            torch.save(buffer.state_dict(), tmp_path / "state.pt")
            (tmp_path / "buffer.pickle").write_bytes(pickle.dumps(buffer))
    (tmp_path / "record").write_bytes(pack_record(data[0]))
    names = [kind.__name__ for kind in STORAGES]
    done = subprocess.run(
        [sys.executable, "-c", READER, str(tmp_path), *names], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    each = [files[0]] * 2 + [files[1]] * 3
    expected = [f"{name} {each} {files[1]}" for name in names]
    expected += [f"torch.Size([4]) {each}", str(each), files[0]]
    assert done.stdout.splitlines() == expected


def test_a_checkpoint_keeps_one_word_per_file(tmp_path: Path) -> None:
    buffer = TensorDictReplayBuffer(storage=LazyMemmapStorage(100_000), batch_size=4)
    paths = [f"/data/episodes/{n:04}.mp4" for n in range(500)]
    frame = VideoClipRef.from_files(paths, num_frames_per_file=200)
    buffer.extend(TensorDict({"frame": frame}, [100_000]))
    buffer.dumps(tmp_path / "saved")
    size = sum(path.stat().st_size for path in (tmp_path / "saved").rglob("*") if path.is_file())
    assert 16 * 100_000 < size < 16 * 100_000 + 200_000


def test_a_number_that_nobody_explained_is_refused() -> None:
    ref = VideoClipRef("a", [1, 2])
    ref.file_number = torch.tensor([5, 6])
    for call in (lambda: ref.source, lambda: ref.sources, lambda: ref.auto_decode, ref.decode):
        with pytest.raises(LookupError, match=r"file_number \(5\)"):
            call()
