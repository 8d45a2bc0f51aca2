"""Columns of checkpoints as files for others, and back: `.npz`, HDF5, and folders as TensorDicts write of themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from replay_service import (
    CheckpointError,
    FlatStorageCheckpointer,
    LayoutError,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    ReplayBuffer,
    TensorDictReplayBuffer,
)
from replay_service.buffer.offline_files.mapped_dump import MappedDump, is_mapped_dump
from replay_service.buffer.offline_files.opening import open_offline_file
from replay_service.buffer.persist.exporting import export_columns
from replay_service.buffer.persist.stored_columns import opened_checkpoint
from tests.buffer.persist.test_ted import episodes, same


def checkpoint(folder: Path, written: int = 11, capacity: int = 8, **settings: Any) -> Path:
    """The newest steps of a ring that wrapped."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=2, **settings)
    steps = episodes([4, 5, 6])[:written]
    for at in range(0, written, 3):
        buffer.extend(steps[at : at + 3])
    buffer.dumps(folder / "c")
    return folder / "c"


def exported(folder: Path, target: Path, chunk_rows: int = 3) -> list[int]:
    moved: list[int] = []
    with opened_checkpoint(folder / "c") as stored:
        export_columns(stored, target, chunk_rows, moved.append)
    return moved


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("settings", [{}, {"checkpointer": FlatStorageCheckpointer()}], ids=["columns", "flat"])
def test_archives(folder: Path, settings: dict[str, Any]) -> None:
    checkpoint(folder, **settings)
    moved = exported(folder, folder / "steps.npz")
    torch.manual_seed(0)
    expected = episodes([4, 5, 6])[3:11]
    with np.load(folder / "steps.npz") as archive:
        assert archive["next/observation"].tolist() == expected["next", "observation"].tolist()
        assert archive["action"].tolist() == expected["action"].tolist(), "the oldest step comes first"
        assert archive["done"].dtype == np.bool_
        assert sum(moved) == sum(archive[name].nbytes for name in archive.files)
    with open_offline_file(folder / "steps.npz", extra=True) as file:
        back = file[:]
    assert back["observation"].tolist() == expected["observation"].tolist()
    assert back["next", "reward"].tolist() == expected["next", "reward"].tolist()
    assert sorted(entry.name for entry in folder.iterdir()) == ["c", "steps.npz"]


def test_hdf5(folder: Path) -> None:
    checkpoint(folder)
    exported(folder, folder / "steps.h5")
    torch.manual_seed(0)
    expected = episodes([4, 5, 6])[3:11]
    with h5py.File(folder / "steps.h5") as file:
        assert file["next/reward"][:].tolist() == expected["next", "reward"].tolist()
        assert file["collector/traj_ids"].dtype == np.int64
    with open_offline_file(folder / "steps.h5") as file:
        assert len(file) == 8


def test_folders(folder: Path) -> None:
    checkpoint(folder)
    exported(folder, folder / "steps", chunk_rows=100)
    torch.manual_seed(0)
    expected = episodes([4, 5, 6])[3:11]
    assert same(TensorDict.load_memmap(folder / "steps"), expected)
    with open_offline_file(folder / "steps") as file:
        assert isinstance(file, MappedDump)
        assert same(file[:], expected)
        assert same(file[2:5], expected[2:5])


def dump(folder: Path, rows: TensorDict, filled: int, cursor: int) -> Path:
    """What other replay buffers write of a memory-mapped storage."""
    place = folder / "dump"
    rows.memmap(place / "storage")
    (place / "storage" / "storage_metadata.json").write_text(
        json.dumps({"metadata": {}, "is_pytree": False, "len": filled})
    )
    (place / "writer").mkdir()
    (place / "writer" / "metadata.json").write_text(json.dumps({"cursor": cursor, "write_count": 11}))
    return place


@pytest.mark.parametrize(("filled", "cursor", "order"), [(8, 3, [3, 4, 5, 6, 7, 0, 1, 2]), (5, 5, [0, 1, 2, 3, 4])])
def test_dumps_of_other_buffers(folder: Path, filled: int, cursor: int, order: list[int]) -> None:
    rows = TensorDict(
        {
            "action": torch.arange(8),
            "half": torch.arange(8).to(torch.bfloat16),
            "next": TensorDict({"reward": torch.arange(8.0)[:, None]}, [8]),
        },
        [8],
    )
    place = dump(folder, rows, filled, cursor)
    for path in (place, place / "storage"):
        assert is_mapped_dump(path)
        with open_offline_file(path) as file:
            assert file[:]["action"].tolist() == order
            assert file[1:3]["next", "reward"].tolist() == [[float(slot)] for slot in order[1:3]]
            assert file[:]["half"].dtype == torch.bfloat16
            assert file.keys() == [("action",), ("half",), ("next", "reward")]


def test_broken_dumps(folder: Path) -> None:
    place = dump(folder, TensorDict({"a": torch.arange(8)}, [8]), 8, 0)
    meta = place / "storage" / "meta.json"
    told = json.loads(meta.read_text())
    for changed, words in (
        ({**told, "a": {**told["a"], "dtype": "torch.load"}}, "a of .* must be a dense tensor"),
        ({**told, "a": {**told["a"], "shape": [9]}}, "a.memmap must have 72 bytes for a; got 64"),
        ({**told, "b": told["a"]}, "b.memmap must have 64 bytes for b; got 0: it is missing"),
        ({**told, "b": {"type": "NonTensorData"}}, "b of .* must be tensors; got a NonTensorData"),
        ({"shape": [8]}, "must name at least one tensor"),
    ):
        meta.write_text(json.dumps(changed))
        with pytest.raises(LayoutError, match=words):
            MappedDump(place)
    meta.write_text(json.dumps(told))
    (place / "storage" / "storage_metadata.json").write_text('{"len": 9}')
    with pytest.raises(LayoutError, match="length within the 8 rows; got 9"):
        MappedDump(place)
    with pytest.raises(ValueError, match="must be left out"):
        open_offline_file(place, extra=True)
    with pytest.raises(LayoutError, match=r"has no meta\.json"):
        MappedDump(folder)


def test_refusals(folder: Path) -> None:
    checkpoint(folder)
    (folder / "there.npz").write_text("precious")
    for target, kind, words in (
        ("there.npz", FileExistsError, "must not exist"),
        ("steps.parquet", ValueError, "must end with"),
    ):
        with pytest.raises(kind, match=words):
            exported(folder, folder / target)
    assert (folder / "there.npz").read_text() == "precious"
    half = TensorDictReplayBuffer(storage=LazyTensorStorage(3), batch_size=1)
    half.extend(TensorDict({"a": torch.zeros(2, dtype=torch.bfloat16)}, [2]))
    half.dumps(folder / "c")
    for name in ("a.npz", "a.h5"):
        with pytest.raises(LayoutError, match=r"a \(bfloat16\) must have a dtype that NumPy has"):
            exported(folder, folder / name)
    exported(folder, folder / "a")
    objects = ReplayBuffer(storage=ListStorage(3), batch_size=1)
    objects.extend(["text"])
    objects.dumps(folder / "d")
    empty = ReplayBuffer(storage=LazyTensorStorage(3), batch_size=1)
    empty.dumps(folder / "e")
    for name in ("d", "e"):
        with pytest.raises(CheckpointError, match="must hold records in columns"), opened_checkpoint(folder / name):
            pass
    assert sorted(entry.name for entry in folder.iterdir()) == ["a", "c", "d", "e", "there.npz"]


def test_a_write_that_fails_leaves_nothing(folder: Path) -> None:
    checkpoint(folder)

    def stop(count: int) -> None:
        raise KeyboardInterrupt

    for name in ("a.npz", "a.h5", "a"):
        with pytest.raises(KeyboardInterrupt), opened_checkpoint(folder / "c") as stored:
            export_columns(stored, folder / name, 3, stop)
    assert [entry.name for entry in folder.iterdir()] == ["c"]


def test_a_checkpoint_of_a_plain_buffer_goes_with_any_sampler(folder: Path) -> None:
    checkpoint(folder, written=7)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20), sampler=PrioritizedSampler(20, alpha=0.7, beta=0.5), batch_size=4
    )
    buffer.extend(episodes([3]))
    buffer.update_priority([0, 1, 2], torch.tensor([100.0, 100.0, 100.0]))
    buffer.loads(folder / "c")
    assert buffer.sampler.priorities().tolist() == [1.0] * 7
    assert set(buffer.sample(200)["index"].tolist()) == set(range(7))
