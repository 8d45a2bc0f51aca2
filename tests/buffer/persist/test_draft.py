"""Drafts: a place is taken by a whole checkpoint or not at all, and nothing that is not ours is ever replaced."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replay_service import CheckpointError
from replay_service.buffer.persist import draft as drafts
from replay_service.buffer.persist import renaming
from replay_service.buffer.persist.draft import Draft
from replay_service.buffer.persist.reading import Checkpoint


def data_of(value: int, size: int = 3000) -> Any:
    return np.full(size, value, np.uint8)


def save(path: Path, value: int, name: str = "a/b.bin") -> None:
    with Draft(path, "buffer") as draft:
        draft.write(name, [data_of(value)])
        draft.commit({"value": value})


def value_at(path: Path) -> int:
    source = Checkpoint(path, "buffer")
    found = {int(source.read(name)[0]) for name in source.manifest.files}
    assert found == {source.entry("value")}
    return int(source.entry("value"))


def test_one_takes_the_place_of_another(folder: Path) -> None:
    for value in (1, 2, 3):
        save(folder / "c", value)
        assert value_at(folder / "c") == value
        assert [entry.name for entry in folder.iterdir()] == ["c"]
    save(folder / "new" / "deep" / "c", 4)
    assert value_at(folder / "new" / "deep" / "c") == 4


def test_an_empty_folder_and_a_link_to_a_checkpoint_make_room(folder: Path) -> None:
    (folder / "empty").mkdir()
    save(folder / "empty", 1)
    (folder / "latest").symlink_to(folder / "empty")
    save(folder / "latest", 2)
    assert (value_at(folder / "empty"), value_at(folder / "latest")) == (2, 2)
    assert (folder / "latest").is_symlink()


def test_a_damaged_checkpoint_makes_room(folder: Path) -> None:
    save(folder / "c", 1)
    (folder / "c" / "a" / "b.bin").unlink()
    save(folder / "c", 2)
    assert value_at(folder / "c") == 2


@pytest.mark.parametrize("content", ["file", "folder", "manifest", "broken manifest"])
def test_what_is_not_ours_is_never_replaced(folder: Path, content: str) -> None:
    place = folder / "mine"
    if content == "file":
        place.write_text("precious")
    else:
        place.mkdir()
        name = "manifest.json" if "manifest" in content else "notes.txt"
        (place / name).write_text('{"format": "another"}' if content == "manifest" else "precious")
    before = sorted(str(entry) for entry in folder.rglob("*"))
    with pytest.raises(CheckpointError, match=r"path \(.*mine\) must be free.* choose another path"):
        save(place, 1)
    assert sorted(str(entry) for entry in folder.rglob("*")) == before


def test_what_comes_meanwhile_is_not_replaced_either(folder: Path) -> None:
    def race() -> None:
        with Draft(folder / "c", "buffer") as draft:
            (folder / "c").write_text("precious")
            draft.commit({})

    with pytest.raises(CheckpointError, match="must be free"):
        race()
    assert (folder / "c").read_text() == "precious"
    assert [entry.name for entry in folder.iterdir()] == ["c"]


def test_a_save_that_fails_leaves_nothing(folder: Path) -> None:
    save(folder / "c", 1)

    def fail() -> None:
        with Draft(folder / "c", "buffer") as draft:
            draft.write("a.bin", [data_of(2)])
            draft.run([lambda: draft.write("b.bin", [data_of(2)]), lambda: 1 // 0, lambda: None])  # type: ignore[list-item, return-value]

    with pytest.raises(ZeroDivisionError):
        fail()
    assert value_at(folder / "c") == 1
    assert [entry.name for entry in folder.iterdir()] == ["c"]


def full_disk(after: int) -> Callable[..., int]:
    """`os.write` of a disk that has room for so many bytes."""
    real, left = os.write, [after]

    def write(descriptor: int, data: Any) -> int:
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count = real(descriptor, memoryview(data)[: left[0]])
        left[0] -= count
        return count

    return write


@pytest.mark.parametrize("room", [0, 100, 4096, 1_500_000])
def test_a_full_disk(folder: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    save(folder / "c", 1)
    monkeypatch.setattr(os, "write", full_disk(room))

    def fill() -> None:
        with Draft(folder / "c", "buffer") as draft:
            draft.write("a.bin", [data_of(2, 2_000_000)])
            draft.commit({})

    words = r"disk of path \(.*c\) must have room .*No space left .*nothing was changed"
    with pytest.raises(OSError, match=words) as caught:
        fill()
    monkeypatch.undo()
    assert caught.value.errno == errno.ENOSPC
    assert value_at(folder / "c") == 1
    assert [entry.name for entry in folder.iterdir()] == ["c"]


def test_files_that_did_not_change_are_linked(folder: Path) -> None:
    save(folder / "c", 1)
    with Draft(folder / "c", "buffer") as draft:
        assert draft.link("a/b.bin")
        assert not draft.link("a/other.bin")
        draft.commit({"value": 1})
    assert (draft.written_bytes, draft.linked_bytes) == (0, 3000)
    assert value_at(folder / "c") == 1
    with Draft(folder / "elsewhere", "buffer", base=folder / "c") as draft:
        assert draft.link("a/b.bin")
        draft.commit({"value": 1})
    assert value_at(folder / "elsewhere") == 1
    with Draft(folder / "c", "storage") as draft:
        assert draft.base_id is None, "a checkpoint of another kind has other files"


def test_leftovers_of_the_dead_go_and_drafts_of_the_living_stay(folder: Path) -> None:
    dead, alive = folder / ".c.0123456789ab.part", folder / ".c.ba9876543210.part"
    for place in (dead, alive, folder / ".cc.0123456789ab.part"):
        place.mkdir()
        (place / "block.bin").write_bytes(b"half")
    lock = os.open(alive, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    save(folder / "c", 1)
    os.close(lock)
    assert sorted(entry.name for entry in folder.iterdir()) == [".c.ba9876543210.part", ".cc.0123456789ab.part", "c"]


def test_systems_that_cannot_exchange_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renaming, "_renameat2", lambda folder, path: errno.ENOSYS)
    for value in (1, 2):
        save(folder / "c", value)
    assert value_at(folder / "c") == 2
    assert [entry.name for entry in folder.iterdir()] == ["c"]
    # Killed between the two names:
    os.rename(folder / "c", folder / ".c.old")
    assert value_at(folder / "c") == 2
    save(folder / "c", 3)
    assert value_at(folder / "c") == 3
    assert [entry.name for entry in folder.iterdir()] == ["c"]


def test_file_systems_without_direct_writes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from replay_service.buffer.persist import block_files

    big = np.arange(3_000_001, dtype=np.int64).view(np.uint8)[:3_000_001]
    for direct in (block_files.O_DIRECT, 0):
        monkeypatch.setattr(block_files, "O_DIRECT", direct)
        with Draft(folder / "c", "buffer") as draft:
            draft.write("a.bin", [big[:1000], big[1000:2_000_000], big[2_000_000:]])
            draft.commit({})
        assert (Checkpoint(folder / "c", "buffer").read("a.bin") == big).all()


def test_the_lock_of_a_draft_that_is_being_made_is_respected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    real = fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        if not taken:  # somebody takes it for a leftover first
            taken.append(1)
            raise BlockingIOError
        real(descriptor, operation)

    monkeypatch.setattr(drafts.fcntl, "flock", late)
    save(folder / "c", 1)
    assert value_at(folder / "c") == 1
