"""A checkpoint that is being written: a folder beside its place, which it takes only when it is whole.

Whoever reads finds the old checkpoint or the new one, never a mixture: the folder takes its place in one step, in exchange for the old
one. A save that ends early, for whatever reason, leaves the old one as it was; the draft of a process that was killed is removed by the
next save to the same place, which can tell it from one that is still written to by the lock on it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replay_service.buffer.persist.block_files import FileRecord, Staging, write_file
from replay_service.buffer.persist.lock_meter import LockMeter
from replay_service.buffer.persist.manifest import MANIFEST_NAME, Manifest, holds_checkpoint, read_manifest
from replay_service.buffer.persist.renaming import exchange, settle
from replay_service.errors import CheckpointError
from replay_service.records import SaveReceipt

__all__ = ["Draft", "remove_leftovers", "require_replaceable"]

WRITERS = 4
"""Files written side by side: a direct write keeps its thread waiting, and the disk is faster with several of them."""

Bytes = NDArray[np.uint8]


class Draft:
    """A context: what is written within it becomes the checkpoint at `path` by `commit`, or leaves no trace.

    Args:
        path: where the checkpoint is to be: free, an empty folder, or a checkpoint.
        kind: what of; a checkpoint is loaded only by what is of its kind.
        base: the folder of an earlier checkpoint; what did not change since is linked from there. None: that at `path`, if there is one.

    Attributes:
        written_bytes, linked_bytes: of the files so far.

    Raises:
        CheckpointError: something else lies at `path`.
        OSError: no folder can be made beside it.
    """

    def __init__(self, path: str | os.PathLike[str], kind: str, base: Path | None = None) -> None:
        self.path = Path(os.path.realpath(path))
        self._kind = kind
        require_replaceable(self.path)
        self._base_folder, self._base = _first_readable(kind, base, self.path)
        self._files: dict[str, FileRecord] = {}
        self._linked: set[str] = set()
        self.written_bytes = 0
        self.linked_bytes = 0
        self._staging = Staging()
        self._folders: set[Path] = set()

    def __enter__(self) -> Draft:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self.path)
        settle(self.path)
        self.folder, self._lock = _claimed(self.path)
        self._folders = {self.folder}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After a commit this is what was there before, or nothing.
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            words = f"disk of path ({self.path}) must have room for the checkpoint; got {os.strerror(error.errno)!r}"
            raise OSError(error.errno, f"{words}: nothing was changed there, free some space and save again") from error

    @property
    def base_id(self) -> str | None:
        """Which checkpoint files can be linked from; None for none."""
        return None if self._base is None else self._base.id

    def base_record(self, name: str) -> FileRecord | None:
        """What the earlier checkpoint says of the file `name`."""
        return None if self._base is None else self._base.files.get(name)

    @property
    def base_content(self) -> dict[str, Any]:
        """The content of the earlier checkpoint's manifest; empty for none."""
        return {} if self._base is None else self._base.content

    def place_of(self, name: str) -> Path:
        """Where the file `name` lies, with its folder."""
        place = self.folder / name
        if place.parent not in self._folders:
            place.parent.mkdir(parents=True, exist_ok=True)
            self._folders.add(place.parent)
        return place

    def write(self, name: str, parts: Sequence[Bytes], digest: str | None = None) -> None:
        """Writes one file made of `parts` uint8, in place of the one of that name, if there is one already."""
        place = self.place_of(name)
        if name in self._files:
            place.unlink()
            self.written_bytes -= self._files[name].size_bytes
        written = write_file(place, parts, self._staging)
        self._files[name] = FileRecord(written.size_bytes, written.crc32, digest)
        self.written_bytes += written.size_bytes

    def link(self, name: str) -> bool:
        """Takes the file `name` of the earlier checkpoint over without writing it; False if that cannot be done."""
        record = self.base_record(name)
        if record is None or self._base_folder is None:
            return False
        try:
            os.link(self._base_folder / name, self.place_of(name))
        except OSError:  # another file system, or one without links, or the earlier checkpoint is gone by now
            return False
        self._files[name] = record
        self._linked.add(name)
        self.linked_bytes += record.size_bytes
        return True

    def is_linked(self, name: str) -> bool:
        """Whether the file `name` was taken over."""
        return name in self._linked

    def run(self, tasks: Iterable[Callable[[], None]]) -> None:
        """Runs tasks side by side, to the end; the first error is raised when all of them have ended."""
        with ThreadPoolExecutor(WRITERS, thread_name_prefix="replay-save") as pool:
            pending = [pool.submit(task) for task in tasks]
            try:
                for future in pending:
                    future.result()
            except BaseException:
                for future in pending:
                    future.cancel()
                raise

    def commit(self, content: dict[str, Any]) -> Manifest:
        """Writes the manifest and takes the place, in one step."""
        self._adopt_strays()
        manifest = Manifest(self._kind, content, dict(self._files))
        text = np.frombuffer(manifest.to_json().encode(), np.uint8)
        write_file(self.folder / MANIFEST_NAME, [text], self._staging)
        for folder in sorted(self._folders, reverse=True):
            sync_folder(folder)
        require_replaceable(self.path)  # somebody may have put something there meanwhile
        exchange(self.folder, self.path)
        sync_folder(self.path.parent)
        return manifest

    def receipt(self, manifest: Manifest, begun: float, meter: LockMeter) -> SaveReceipt:
        """What the save did that `commit` gave `manifest` for.

        Args:
            manifest: of the checkpoint that is in its place now.
            begun: when the save began, as `time.perf_counter` tells it, in seconds.
            meter: what the buffer's lock was held through.
        """
        return SaveReceipt(
            path=str(self.path),
            size_bytes=manifest.size_bytes,
            written_bytes=self.written_bytes,
            took_s=time.perf_counter() - begun,
            locked_s=meter.held_s,
            longest_lock_s=meter.longest_s,
        )

    def _adopt_strays(self) -> None:
        """Files that hooks and checkpointers of users wrote by themselves belong to the checkpoint, too."""
        for place in self.folder.rglob("*"):
            name = place.relative_to(self.folder).as_posix()
            if place.is_dir():
                self._folders.add(place)
            elif name not in self._files:
                data = place.read_bytes()
                with open(place, "rb") as file:
                    os.fsync(file.fileno())
                self._files[name] = FileRecord(len(data), zlib.crc32(data))
                self.written_bytes += len(data)


def require_replaceable(path: Path) -> None:
    """Checks that a checkpoint may take the place of what is at `path`.

    Raises:
        CheckpointError: it is neither a checkpoint nor an empty folder.
    """
    if not path.exists():
        return
    if not path.is_dir():
        raise CheckpointError(f"path ({path}) must be free or a checkpoint; got a file: choose another path")
    if any(path.iterdir()) and not holds_checkpoint(path):
        raise CheckpointError(
            f"path ({path}) must be free, an empty folder or a checkpoint; got a folder with other files: choose another path"
        )


def remove_leftovers(path: Path) -> None:
    """Removes drafts for `path` whose processes are gone."""
    for folder in path.parent.glob(f".{_escaped(path.name)}.*.part"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # somebody is writing to it
        finally:
            os.close(lock)


def sync_folder(folder: Path) -> None:
    """Waits until the entries of `folder` are on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _claimed(path: Path) -> tuple[Path, int]:
    """A new folder beside `path`, and the lock that says that it is being written to."""
    while True:
        folder = path.parent / f".{path.name}.{uuid.uuid4().hex[:12]}.part"
        folder.mkdir()
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # taken for a leftover before it was locked
            os.close(lock)
            continue
        return folder, lock


def _first_readable(kind: str, *folders: Path | None) -> tuple[Path | None, Manifest | None]:
    for folder in folders:
        if folder is not None:
            try:
                return folder, read_manifest(folder, kind)
            except (CheckpointError, OSError):
                continue
    return None, None


def _escaped(name: str) -> str:
    """A name for `glob`, taken literally."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)
