"""LazyMemmapStorage: the columnar storage in files."""

from __future__ import annotations

import copy
import gc
import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from replay_service import LayoutError, TensorDictReplayBuffer
from replay_service.buffer.storages.lazy_memmap import LazyMemmapStorage
from replay_service.structure import flatten_rows
from tests.contracts.storage import StorageContract, stamps_of
from tests.rows import assert_rows_are_whole, stamped_rows

SPAWN = multiprocessing.get_context("spawn")


class TestLazyMemmapStorage(StorageContract):
    def make(self, capacity: int) -> LazyMemmapStorage:
        return LazyMemmapStorage(capacity)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "new" / "columns"


def _meta(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "meta.json").read_text())  # type: ignore[no-any-return]


def test_other_programs_can_read_the_files(folder: Path) -> None:
    storage = LazyMemmapStorage(6, scratch_dir=folder)
    assert not folder.exists(), "nothing is made before the first record"
    storage.set(range(4), stamped_rows(4, stamp=7))
    meta = _meta(folder)
    assert meta["byteorder"] == sys.byteorder
    read = {
        ".".join(column["key"]): np.fromfile(folder / column["file"], column["dtype"]).reshape(column["shape"])
        for column in meta["columns"]
    }
    assert read["action"].tolist() == [7, 8, 9, 10, 0, 0]
    assert read["next.observation"].shape == (6, 4)
    assert read["next.observation"][2].tolist() == [9, 9, 9, 9]
    assert read["next.done"].dtype == np.bool_
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [*(c["file"] for c in meta["columns"]), "meta.json"]
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.uint16, torch.complex64, torch.float64, torch.bool])
def test_every_dtype(folder: Path, dtype: torch.dtype) -> None:
    values = torch.tensor([1, 0, 3]).to(dtype)
    storage = LazyMemmapStorage(3, scratch_dir=folder)
    storage.set(range(3), values)
    assert storage.get(slice(None)).dtype == dtype
    assert storage.get(slice(None)).tolist() == values.tolist()
    assert _meta(folder)["columns"][0]["dtype"] == str(dtype).removeprefix("torch.")


class Pair(NamedTuple):
    first: Any
    second: Any


def test_pytrees_and_strange_keys(folder: Path) -> None:
    long = "k" * 300
    storage = LazyMemmapStorage(2, scratch_dir=folder)
    storage.set(range(2), {"../up/ä b": torch.arange(2), long: Pair(torch.ones(2), (torch.zeros(2, 0),))})
    got = storage.get(1)
    assert int(got["../up/ä b"]) == 1
    assert got[long].second[0].shape == (0,)
    assert len(list(folder.iterdir())) == 4
    assert [column["key"] for column in _meta(folder)["columns"]] == [
        ["../up/ä b"],
        [long, "first"],
        [long, "second", "0"],
    ]


def test_lanes_and_flatten(folder: Path) -> None:
    storage = LazyMemmapStorage(6, scratch_dir=folder, ndim=2)
    storage.set(range(2), TensorDict({"a": torch.arange(4).view(2, 2)}, [2, 2]))
    assert tuple(storage.shape) == (3, 2)
    assert storage.flatten().get(slice(None))["a"].tolist() == [0, 1, 2, 3]
    assert _meta(folder)["columns"][0]["shape"] == [6]


def test_a_used_folder_is_refused(folder: Path) -> None:
    first = LazyMemmapStorage(2, scratch_dir=folder)
    late = LazyMemmapStorage(2, scratch_dir=folder)
    first.set(range(2), torch.arange(2))
    with pytest.raises(FileExistsError, match=r"scratch_dir .* existsok"):
        LazyMemmapStorage(2, scratch_dir=folder)
    with pytest.raises(FileExistsError, match="scratch_dir"):
        late.set(range(1), torch.tensor([9]))
    assert len(late) == 0
    assert first.get(slice(None)).tolist() == [0, 1]


def test_existsok_replaces_files_and_leaves_their_readers_alone(folder: Path) -> None:
    first = LazyMemmapStorage(2, scratch_dir=folder)
    first.set(range(2), {"old": torch.arange(2), "both": torch.arange(2)})
    second = LazyMemmapStorage(1, scratch_dir=folder, existsok=True)
    second.set(range(1), {"both": torch.tensor([5])})
    assert first.get(slice(None))["old"].tolist() == [0, 1]
    assert first.get(slice(None))["both"].tolist() == [0, 1]
    assert sorted(path.name for path in folder.iterdir()) == ["000-both.bin", "meta.json"]


def test_cleanup_removes_what_was_made_and_nothing_else(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "mine.txt").write_text("keep")
    storage = LazyMemmapStorage(2, scratch_dir=folder)
    assert storage.cleanup() is False
    storage.set(range(2), torch.arange(2))
    assert storage.cleanup() is True
    assert storage.cleanup() is False
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]
    assert storage.get(slice(None)).tolist() == [0, 1]
    storage.set([0], torch.tensor([8]))
    assert storage.get(0) == 8


def test_cleanup_removes_the_folder_that_it_made(folder: Path) -> None:
    storage = LazyMemmapStorage(2, scratch_dir=folder)
    storage.set(range(2), torch.arange(2))
    storage.cleanup()
    assert not folder.exists()
    assert folder.parent.exists()


@pytest.mark.parametrize(("auto_cleanup", "stays"), [(None, True), (False, True), (True, False)])
def test_a_dropped_storage_leaves_given_folders_alone(folder: Path, auto_cleanup: bool | None, stays: bool) -> None:
    storage = LazyMemmapStorage(2, scratch_dir=folder, auto_cleanup=auto_cleanup)
    storage.set(range(2), torch.arange(2))
    del storage
    gc.collect()
    assert folder.exists() is stays


@pytest.mark.parametrize(("auto_cleanup", "stays"), [(None, False), (True, False), (False, True)])
def test_temporary_folders_go_with_the_storage(auto_cleanup: bool | None, stays: bool) -> None:
    storage = LazyMemmapStorage(2, auto_cleanup=auto_cleanup)
    assert storage.scratch_dir is None
    storage.set(range(2), torch.arange(2))
    made = storage.scratch_dir
    assert made is not None
    assert made.is_dir()
    del storage
    gc.collect()
    assert made.exists() is stays
    shutil.rmtree(made, ignore_errors=True)


def test_a_process_that_ends_leaves_no_files(tmp_path: Path) -> None:
    program = (
        "import torch; from replay_service.buffer.storages.lazy_memmap import LazyMemmapStorage;"
        "s = LazyMemmapStorage(2); s.set(range(2), torch.arange(2)); print(s.scratch_dir)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.stdout.startswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("device", ["meta", "cuda:0"])
def test_another_device_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match=r"device .* must be cpu"):
        LazyMemmapStorage(2, device=device)


def test_more_than_the_disk_holds_is_refused_before_anything_is_written(folder: Path) -> None:
    storage = LazyMemmapStorage(2**50, scratch_dir=folder)
    with pytest.raises(OSError, match=r"scratch_dir .* bytes"):
        storage.set(range(1), torch.ones(1, 100))
    assert len(storage) == 0
    assert not storage.initialized
    assert list(folder.iterdir()) == []


def test_new_columns_are_files_and_refused_ones_leave_none(folder: Path) -> None:
    storage = LazyMemmapStorage(3, scratch_dir=folder)
    storage.set(range(2), TensorDict({"a": torch.arange(2)}, [2]))
    storage.add_columns(flatten_rows(TensorDict({"b": torch.ones(2)}, [2])))
    assert storage.get(slice(None))["b"].tolist() == [1, 1]
    assert [column["file"] for column in _meta(folder)["columns"]] == ["000-a.bin", "001-b.bin"]
    with pytest.raises(LayoutError):
        storage.add_columns(flatten_rows({"a": {"deeper": torch.ones(2)}}))
    assert sorted(path.name for path in folder.iterdir()) == ["000-a.bin", "001-b.bin", "meta.json"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda storage: pickle.loads(pickle.dumps(storage))])
def test_a_copy_has_records_of_its_own(folder: Path, copied: Any) -> None:
    storage = LazyMemmapStorage(4, scratch_dir=folder)
    storage.set(range(2), stamped_rows(2))
    other = copied(storage)
    other.set(range(2), stamped_rows(2, stamp=50))
    assert other.cleanup() is False
    del other
    gc.collect()
    assert stamps_of(storage.get(slice(None))) == [0, 1]
    assert (folder / "meta.json").exists()


def _write(buffer: TensorDictReplayBuffer) -> None:
    torch.set_num_threads(1)
    buffer.extend(stamped_rows(3, stamp=20))


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_share_the_files(folder: Path, method: str) -> None:
    buffer = TensorDictReplayBuffer(storage=LazyMemmapStorage(4, scratch_dir=folder, auto_cleanup=True), shared=True)
    buffer.extend(stamped_rows(2))
    process = multiprocessing.get_context(method).Process(target=_write, args=(buffer,))
    process.start()
    process.join(timeout=60)
    assert process.exitcode == 0
    assert len(buffer) == 4
    assert buffer[:]["action"].tolist() == [22, 1, 20, 21]
    assert_rows_are_whole(buffer[:])
    actions = np.fromfile(next(folder.glob("*-action.bin")), np.int64)
    assert actions.tolist() == [22, 1, 20, 21], "the files are the shared memory, not copies"


def test_state_goes_to_and_from_memory(folder: Path) -> None:
    storage = LazyMemmapStorage(4, scratch_dir=folder)
    storage.set(range(3), stamped_rows(3))
    state = storage.state_dict()
    storage.set(range(3), stamped_rows(3, stamp=9))
    assert state["columns"][0].shape[0] == 3
    storage.load_state_dict(state)
    assert stamps_of(storage.get(slice(None))) == [0, 1, 2]
    state["columns"][1].fill_(-1)
    assert stamps_of(storage.get(slice(None))) == [0, 1, 2]


@pytest.mark.parametrize("auto_cleanup", [True, False])
def test_release_removes_what_goes_with_the_process(folder: Path, auto_cleanup: bool) -> None:
    storage = LazyMemmapStorage(2, scratch_dir=folder, auto_cleanup=auto_cleanup)
    storage.set(range(2), torch.arange(2))
    storage.release()
    assert folder.exists() is not auto_cleanup
