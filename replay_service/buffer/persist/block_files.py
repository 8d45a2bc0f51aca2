"""Block files: raw bytes in one file, written and read past the page cache where that is possible, with a running CRC-32.

A file is on disk when `write_file` returns, and there after a power failure, too. Writing directly (`O_DIRECT`) costs less than writing to
the page cache and waiting for it: the disk's own transfer is the only copy, and memory that samples need is not given to file pages.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replay_service.errors import CheckpointError

__all__ = ["FileRecord", "Staging", "read_file", "write_file"]

STAGE_BYTES = 1 << 20
DIRECT_FROM_BYTES = 1 << 18
PAGE_BYTES = 4096
O_DIRECT: int = getattr(os, "O_DIRECT", 0)

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What a manifest says of one file: its size in bytes, the CRC-32 of its content, and, where it tells whether to write the file again,
    a digest that no other content has (BLAKE2b, 128 bits)."""

    size_bytes: int
    crc32: int
    digest: str | None = None


class Staging(threading.local):
    """A page-aligned megabyte for each thread, through which bytes pass on their way to the disk."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, STAGE_BYTES)
        self.array: Bytes = np.frombuffer(self.memory, np.uint8)


def write_file(path: Path, parts: Sequence[Bytes], staging: Staging) -> FileRecord:
    """Writes `parts`, one after the other, as one new file, and waits until they are on disk.

    Raises:
        OSError: the disk is full, or cannot be written to.
    """
    total = sum(part.size for part in parts)
    descriptor, is_direct = _open(path, total)
    try:
        crc = _write(descriptor, parts, staging, is_direct)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return FileRecord(total, crc)


def read_file(path: Path, record: FileRecord, out: Bytes, staging: Staging) -> None:
    """Fills `out` uint8 `[size]` with a file's content.

    Raises:
        CheckpointError: the file is shorter or longer than its record says, or has another checksum, or cannot be read.
    """
    try:
        descriptor = _open_to_read(path, record.size_bytes)
        try:
            size = os.fstat(descriptor).st_size
            if size != record.size_bytes or out.size != size:
                wanted = record.size_bytes if size != record.size_bytes else out.size
                raise CheckpointError(
                    f"file ({path}) must have {wanted} bytes; got {size}: it was cut short or changed"
                )
            crc, count = _read(descriptor, out, staging)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise CheckpointError(f"file ({path}) must be readable; {error.strerror or error}") from error
    if count != size:
        raise CheckpointError(f"file ({path}) must have {size} bytes; it ends after {count}")
    if crc != record.crc32:
        raise CheckpointError(
            f"file ({path}) must have the checksum {record.crc32:08x}; got {crc:08x}: its content was damaged"
        )


def _open_to_read(path: Path, size: int) -> int:
    """A descriptor that reads directly, unless what is asked for is in memory already, or the file system cannot."""
    descriptor = os.open(path, os.O_RDONLY)
    if not O_DIRECT or size < DIRECT_FROM_BYTES or _is_cached(descriptor):
        return descriptor
    try:
        direct = os.open(path, os.O_RDONLY | O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            os.close(descriptor)
            raise
        return descriptor
    os.close(descriptor)
    return direct


def _is_cached(descriptor: int) -> bool:
    """Whether the file begins in the page cache, where the rest of it is then, too."""
    try:
        return os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT) == 1
    except OSError:  # it is not, or the file system cannot tell
        return False


def _read(descriptor: int, out: Bytes, staging: Staging) -> tuple[int, int]:
    """Checksum and number of the bytes that were read; a direct read needs memory that is aligned, which `out` may not be."""
    is_direct = bool(O_DIRECT and fcntl.fcntl(descriptor, fcntl.F_GETFL) & O_DIRECT)
    at, crc = 0, 0
    while at < out.size:
        target: Any = staging.memory if is_direct else out[at : at + STAGE_BYTES]
        count = os.preadv(descriptor, [target], at)
        if not count:
            break
        part = staging.array[: min(count, out.size - at)] if is_direct else out[at : at + count]
        crc = zlib.crc32(part, crc)  # type: ignore[arg-type]
        if is_direct:
            out[at : at + part.size] = part
        at += part.size
    return crc, at


def _open(path: Path, total: int) -> tuple[int, bool]:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    if O_DIRECT and total >= DIRECT_FROM_BYTES:
        try:
            return os.open(path, flags | O_DIRECT, 0o644), True
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            # A file system without direct writes; some have made the file already.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
    return os.open(path, flags, 0o644), False


def _write(descriptor: int, parts: Sequence[Bytes], staging: Staging, is_direct: bool) -> int:
    stage, filled, crc = staging.array, 0, 0
    for part in parts:
        at = 0
        while at < part.size:
            count = min(part.size - at, STAGE_BYTES - filled)
            stage[filled : filled + count] = part[at : at + count]
            filled, at = filled + count, at + count
            if filled == STAGE_BYTES:
                crc = zlib.crc32(stage, crc)  # type: ignore[arg-type]
                _write_all(descriptor, stage)
                filled = 0
    rest = stage[:filled]
    if filled:
        crc = zlib.crc32(rest, crc)  # type: ignore[arg-type]
        if is_direct and filled % PAGE_BYTES:  # what is no whole page can only go through the cache
            fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~O_DIRECT)
        _write_all(descriptor, rest)
    return crc


def _write_all(descriptor: int, data: Bytes) -> None:
    view: Any = memoryview(data)  # type: ignore[arg-type]
    while view:
        view = view[os.write(descriptor, view) :]
