"""Checkpoints of buffers: what a save writes, what goes on meanwhile, and that kill -9 costs nothing that was saved."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ReplayBuffer,
    TensorStorage,
)
from replay_service.buffer.persist import block_files
from tests.buffer.persist.buffers import CAPACITY, make, rows, same
from tests.source_tree import ROOT

BLOCK = 256


def filled(storage: Any = None, count: int = CAPACITY) -> Any:
    buffer = make(storage)
    buffer.extend(rows(count))
    return buffer


STORAGES = {
    "tensor": lambda: LazyTensorStorage(CAPACITY),
    "memmap": lambda: LazyMemmapStorage(CAPACITY),
    "wrapped": lambda: TensorStorage(rows(CAPACITY)),
}


@pytest.mark.parametrize("kind", STORAGES)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_later_save_writes_what_changed(folder: Path, kind: str, elsewhere: bool) -> None:
    buffer = filled(STORAGES[kind]())
    first = buffer.dumps(folder / "1")
    assert first.written_bytes == first.size_bytes > CAPACITY * 4096
    path = folder / ("2" if elsewhere else "1")
    buffer.extend(rows(BLOCK - 10, stamp=10_000))  # within the first block
    buffer.storage.set(torch.tensor([5 * BLOCK, 9 * BLOCK + 3]), rows(2, stamp=20_000), set_cursor=False)
    second = buffer.dumps(path)
    # Three blocks of a megabyte; numbers, stamps and priorities are small and come along.
    assert 3 << 20 <= second.written_bytes < 4 << 20
    assert second.size_bytes > CAPACITY * 4096
    loaded = make(STORAGES[kind](), seed=1)
    loaded.loads(path)
    assert same(loaded, buffer)
    # A loaded buffer goes on where the checkpoint stands.
    loaded.extend(rows(1, stamp=30_000))
    third = loaded.dumps(path)
    assert third.written_bytes < 2 << 20
    again = make(STORAGES[kind]())
    again.loads(path)
    assert same(again, loaded)


def test_changes_of_any_kind_are_saved(folder: Path) -> None:
    buffer = filled(count=1000)
    buffer.dumps(folder / "c")
    _, info = buffer.sample(return_info=True)
    changes = [
        lambda: buffer.update_if_present(
            index=info["index"], generation=info["index_generation"], patch={"number": torch.full((8,), -3)}
        ),
        lambda: buffer.__setitem__(3, rows(1, 777)[0]),
        lambda: buffer.set_at_("number", torch.tensor(5), 400),
        lambda: buffer.update_({"observation": torch.zeros(1000, 1024)}),
        lambda: buffer.update_priority([1, 2], torch.tensor([9.0, 3.0])),
        lambda: buffer.write_all(buffer[:].select("observation", "number").set("label", torch.arange(1000))),
        lambda: buffer.extend(buffer[:4].clone()),
        lambda: buffer.load_state_dict(buffer.state_dict()),
        buffer.empty,
        lambda: buffer.extend(TensorDict(rows(3).to_dict() | {"label": torch.arange(3)}, [3])),
    ]
    for number, change in enumerate(changes):
        change()
        buffer.dumps(folder / "c")
        loaded = make()
        loaded.loads(folder / "c")
        assert same(loaded, buffer), number


def test_memory_that_is_not_the_storages_alone_is_compared(folder: Path) -> None:
    data = rows(CAPACITY)
    buffer = ReplayBuffer(storage=TensorStorage(data), batch_size=2)
    buffer.dumps(folder / "c")
    data["observation"][3 * BLOCK] = -1.0  # behind the storage's back
    receipt = buffer.dumps(folder / "c")
    assert 1 << 20 <= receipt.written_bytes < 2 << 20
    loaded = ReplayBuffer(storage=LazyTensorStorage(CAPACITY), batch_size=2)
    loaded.loads(folder / "c")
    assert loaded[3 * BLOCK]["observation"][0] == -1


def test_a_deleted_or_moved_predecessor_is_no_loss(folder: Path) -> None:
    buffer = filled(count=600)
    buffer.dumps(folder / "1")
    os.rename(folder / "1", folder / "moved")
    assert buffer.dumps(folder / "2").written_bytes > 600 * 4096
    other = filled(count=700)
    other.dumps(folder / "2")  # another buffer's checkpoint, in the place of ours
    buffer.extend(rows(1))
    assert buffer.dumps(folder / "2").written_bytes > 600 * 4096
    for path, count in ((folder / "moved", 600), (folder / "2", 601)):
        loaded = make()
        loaded.loads(path)
        assert len(loaded) == count


class SlowDisk:
    """A disk that lets something else happen while each block is written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, between: Any) -> None:
        real = block_files.write_file

        def write_file(path: Path, parts: Any, staging: Any) -> Any:
            between(path)
            record = real(path, parts, staging)
            between(path)
            return record

        monkeypatch.setattr("replay_service.buffer.persist.draft.write_file", write_file)


def test_a_save_is_one_moment_while_calls_go_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = filled()
    twin = make()
    twin.load_state_dict(buffer.state_dict())
    draw = random.Random(3)
    number = [100_000]

    def meddle(path: Path) -> None:
        """What collectors and learners do meanwhile, in the very threads that save: none of it may wait for the save."""
        number[0] += 1
        with threading.Lock():
            buffer.extend(rows(draw.choice([1, 100, 300]), stamp=number[0]))
            batch = buffer.sample(16)
            buffer.update_priority(batch["index"], torch.rand(16))
            buffer.storage.set(torch.tensor([draw.randrange(CAPACITY)]), rows(1, 5), set_cursor=False)

    SlowDisk(monkeypatch, meddle)
    buffer.dumps(folder / "c")
    monkeypatch.undo()
    loaded = make(seed=1)
    loaded.loads(folder / "c")
    assert same(loaded, twin), "what is saved is the moment of the call"
    receipt = buffer.dumps(folder / "c")
    loaded.loads(folder / "c")
    assert same(loaded, buffer), "what came meanwhile is in the next one"
    assert receipt.longest_lock_s <= receipt.locked_s < receipt.took_s


def test_saves_at_the_same_time_wait_for_each_other(folder: Path) -> None:
    buffer = filled(count=500)
    failures: list[Exception] = []

    def save(place: int) -> None:
        try:
            for _ in range(3):
                buffer.extend(rows(1, place))
                (buffer if place % 2 else buffer.storage).dumps(folder / f"{place}")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=save, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for place in (1, 3):
        loaded = make()
        loaded.loads(folder / f"{place}")
        assert len(loaded) > 500
    storage = LazyTensorStorage(CAPACITY)
    storage.loads(folder / "0")
    assert len(storage) > 500


def test_a_full_disk_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, twin = filled(count=600), filled(count=600)
    buffer.dumps(folder / "c")
    before = {path: path.stat().st_mtime_ns for path in (folder / "c").rglob("*")}
    for each in (buffer, twin):
        each.extend(rows(400, stamp=9))

    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="must have room for the checkpoint") as caught:
        buffer.dumps(folder / "c")
    monkeypatch.undo()
    assert caught.value.errno == errno.ENOSPC
    assert {path: path.stat().st_mtime_ns for path in (folder / "c").rglob("*")} == before
    assert [path.name for path in folder.iterdir()] == ["c"]
    assert same(buffer, twin)
    buffer.dumps(folder / "c")
    loaded = make()
    loaded.loads(folder / "c")
    assert same(loaded, buffer)


def test_kill_9_in_the_middle_of_saves(folder: Path) -> None:
    """20 times, at random moments: the newest whole checkpoint loads, and is what was saved."""
    command = [sys.executable, "-m", "tests.buffer.persist.killing", str(folder / "c"), "20"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] == ["20", "kills"]
    make(capacity=1024).dumps(folder / "c")
    assert [entry.name for entry in folder.iterdir()] == ["c"], "leftovers of the killed are gone"
