"""Columns in memory-mapped files, and the folder they lie in.

A column is one file of raw values, row after row, in the byte order of the machine; `meta.json` beside the files names key, dtype and
shape of each, so that any program can read them:

    {"format": "replay-service columns", "version": 1, "byteorder": "little",
     "columns": [{"key": ["next", "reward"], "file": "000-next.reward.bin", "dtype": "float32", "shape": [1000, 1]}]}
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from replay_service.buffer.columns import Column
from replay_service.errors import key_name
from replay_service.payload import view_leaf
from replay_service.structure import Leaf

__all__ = ["META_NAME", "MappedColumn", "MappedFolder"]

META_NAME = "meta.json"
FORMAT = "replay-service columns"
LONGEST_NAME = 100


class MappedColumn(Column):
    """A column whose memory is a file.

    Args:
        leaf: key, dtype and row shape.
        path: the file; it holds `records` rows already.
        records: rows.
        is_shared: whether other processes are to see the same file; else a pickled or copied column is one in memory.
    """

    __slots__ = ("_is_shared", "path", "records")

    def __init__(self, leaf: Leaf, path: Path, records: int, is_shared: bool = False) -> None:
        self.path = path
        self.records = records
        self._is_shared = is_shared
        if leaf.row_bytes * records:
            memory = np.memmap(path, np.uint8, "r+")
            super().__init__(leaf, view_leaf(memory, leaf.dtype, (records, *leaf.shape), 0))
        else:  # nothing to map
            super().__init__(leaf, torch.zeros(records, *leaf.shape, dtype=leaf.dtype, device="cpu"))

    def shared(self) -> MappedColumn:
        """The same file, also for processes that this one starts."""
        return MappedColumn(self.leaf, self.path, self.records, is_shared=True)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._is_shared:
            return MappedColumn, (self.leaf, self.path, self.records, True)
        return Column, (self.leaf, self.tensor.clone())


class MappedFolder:
    """The folder of one storage. Nothing is made before the first column is.

    Args:
        path: the folder; None makes a temporary one when it is needed.
        existsok: whether columns that lie there already may be replaced.

    Raises:
        FileExistsError: columns of another storage lie there.
    """

    def __init__(self, path: str | Path | None, existsok: bool = False) -> None:
        self._path = None if path is None else Path(path)
        self._columns: list[MappedColumn] = []
        self._existsok = existsok
        self._made_folder = path is None
        self._require_unused()

    @property
    def path(self) -> Path | None:
        """The folder; None until a temporary one was made."""
        return self._path

    def allocate(self, leaves: Sequence[Leaf], records: int) -> list[MappedColumn]:
        """Zeroed columns of `records` rows in new files, named in `meta.json`.

        Raises:
            OSError: the file system has not as much space as the full columns need; nothing was made.
        """
        if not self._columns:
            self._require_unused()
        folder = self._made()
        needed = sum(leaf.row_bytes for leaf in leaves) * records
        free = shutil.disk_usage(folder).free
        if needed > free:
            # A page that finds no space when it is written to would end the process.
            raise OSError(
                errno.ENOSPC, f"scratch_dir ({folder}) must have {needed} bytes for {records} records; got {free} free"
            )
        if not self._columns:
            self._remove_predecessors(folder)
        fresh: list[MappedColumn] = []
        try:
            for leaf in leaves:
                path = folder / _file_name(len(self._columns) + len(fresh), leaf)
                with open(path, "xb") as file:
                    file.truncate(leaf.row_bytes * records)
                fresh.append(MappedColumn(leaf, path, records))
            self._write_meta(folder, [*self._columns, *fresh])
        except BaseException:
            _remove(fresh)
            raise
        self._columns += fresh
        return fresh

    def remove(self) -> bool:
        """Removes the files that were made here, and the folder if it was made here and is empty. Whether there was any."""
        if self._path is None or not self._columns:
            return False
        _remove(self._columns)
        (self._path / META_NAME).unlink(missing_ok=True)
        self._columns = []
        if self._made_folder and not any(self._path.iterdir()):
            self._path.rmdir()
        return True

    def _require_unused(self) -> None:
        if self._path is not None and not self._existsok and (self._path / META_NAME).exists():
            raise FileExistsError(
                f"scratch_dir ({self._path}) must not hold columns already; got a {META_NAME}: choose another folder, or replace them "
                f"with existsok=True"
            )

    def _remove_predecessors(self, folder: Path) -> None:
        """Removes the columns of another storage; they may be mapped elsewhere, so they are never cut short under their readers."""
        try:
            meta = json.loads((folder / META_NAME).read_text())
        except (FileNotFoundError, ValueError):
            return
        if isinstance(meta, dict) and meta.get("format") == FORMAT:
            for column in meta["columns"]:
                (folder / Path(column["file"]).name).unlink(missing_ok=True)

    def _made(self) -> Path:
        if self._path is None:
            self._path = Path(tempfile.mkdtemp(prefix="replay-columns-"))
        elif not self._path.is_dir():
            self._path.mkdir(parents=True)
            self._made_folder = True
        return self._path

    def _write_meta(self, folder: Path, columns: Sequence[MappedColumn]) -> None:
        described = [
            {
                "key": list(column.leaf.key),
                "file": column.path.name,
                "dtype": str(column.leaf.dtype).removeprefix("torch."),
                "shape": [column.records, *column.leaf.shape],
            }
            for column in columns
        ]
        meta = {"format": FORMAT, "version": 1, "byteorder": sys.byteorder, "columns": described}
        draft = folder / f"{META_NAME}.part"
        draft.write_text(json.dumps(meta, indent=1))
        os.replace(draft, folder / META_NAME)


def _file_name(place: int, leaf: Leaf) -> str:
    """A name that any file system takes; the number makes it unique, the key is for people."""
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", key_name(leaf.key))[:LONGEST_NAME]
    return f"{place:03d}-{readable or 'value'}.bin"


def _remove(columns: Sequence[MappedColumn]) -> None:
    for column in columns:
        column.path.unlink(missing_ok=True)
