"""Folders of memory-mapped columns: what a TensorDict writes of itself, and so what other replay buffers dump.

Each level of a TensorDict is a folder: `meta.json` names its entries with `dtype` and `shape`, and `name.memmap` holds the raw values of
one; nested levels are folders within. A dumped buffer has such a folder `storage`, with `storage_metadata.json`, whose `len` tells how many
of the rows are filled, and `writer/metadata.json`, whose `cursor` tells where in a full ring the oldest row lies.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from replay_service.buffer.offline_files.offline_file import OfflineFile
from replay_service.errors import LayoutError, key_name
from replay_service.payload import view_leaf
from replay_service.specs import Key

__all__ = ["MappedDump", "is_mapped_dump"]

META, LENGTH, WRITER = "meta.json", "storage_metadata.json", "writer/metadata.json"
FORMAT_OF_OURS = "format"


def is_mapped_dump(path: Path) -> bool:
    """Whether `path` is such a folder, or that of a dumped buffer."""
    return any(_is_level(folder) for folder in (path, path / "storage"))


class MappedDump(OfflineFile):
    """The rows of a dumped buffer, the oldest first, or of a folder of memory-mapped columns; read as they are.

    Args:
        path: the folder.

    Raises:
        LayoutError: it is none, or a file in it is missing or too short, or holds what is no tensor.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        folder = path if _is_level(path) else path / "storage"
        if not _is_level(folder):
            raise LayoutError(f"{path} must be a folder of memory-mapped columns; it has no {META}")
        self._columns: dict[Key, Tensor] = {}
        self._read_level(folder, ())
        if not self._columns:
            raise LayoutError(f"{folder / META} must name at least one tensor; it names none")
        rows = {int(column.shape[0]) for column in self._columns.values()}
        if len(rows) != 1:
            raise LayoutError(f"{folder} must have as many rows in each column; got {sorted(rows)}")
        (capacity,) = rows
        told = _json(folder / LENGTH).get("len") if (folder / LENGTH).is_file() else None
        self._rows = capacity if told is None else int(told)
        if not 0 <= self._rows <= capacity:
            raise LayoutError(f"{folder / LENGTH} must tell a length within the {capacity} rows; got {self._rows}")
        writer = folder.parent / WRITER
        cursor = _json(writer).get("cursor", 0) if writer.is_file() and self._rows == capacity else 0
        self._oldest = int(cursor) % max(1, capacity)

    def __len__(self) -> int:
        return self._rows

    def keys(self) -> list[Key]:
        """The entries of what is read."""
        return sorted(self._columns)

    def read(self, start: int, stop: int) -> TensorDict:
        """The rows from `start` to `stop`; the caller's own."""
        slots = (torch.arange(start, stop, device="cpu") + self._oldest) % max(1, self._rows)
        data = TensorDict({}, batch_size=[stop - start])
        for key, column in self._columns.items():
            data[key] = column[slots]
        return data

    def close(self) -> None:
        """Lets go of the files."""
        self._columns = {}

    def _read_level(self, folder: Path, prefix: Key) -> None:
        for name, told in _json(folder / META).items():
            if not isinstance(told, dict):
                continue
            key = (*prefix, name)
            if "type" in told:
                if _is_level(folder / name):
                    self._read_level(folder / name, key)
                else:
                    raise LayoutError(f"{key_name(key)} of {self.path} must be tensors; got a {told['type']}")
            else:
                self._columns[key] = self._mapped(folder / f"{name}.memmap", told, key)

    def _mapped(self, file: Path, told: dict[str, Any], key: Key) -> Tensor:
        dtype = getattr(torch, str(told.get("dtype")).removeprefix("torch."), None)
        shape = told.get("shape")
        if not isinstance(dtype, torch.dtype) or not isinstance(shape, list) or not shape or told.get("is_nested"):
            raise LayoutError(
                f"{key_name(key)} of {self.path} must be a dense tensor with a row per step; got dtype {told.get('dtype')}, shape {shape}"
            )
        size = dtype.itemsize * int(np.prod(shape))
        found = file.stat().st_size if file.is_file() else 0
        if found < size:
            raise LayoutError(
                f"{file} must have {size} bytes for {key_name(key)}; got {found}: it is missing or was cut short"
            )
        if not size:
            return torch.zeros(shape, dtype=dtype, device="cpu")
        return view_leaf(np.memmap(file, np.uint8, "c", shape=(size,)), dtype, tuple(shape), 0)


def _is_level(folder: Path) -> bool:
    if not (folder / META).is_file():
        return False
    return FORMAT_OF_OURS not in _json(folder / META)


def _json(file: Path) -> dict[str, Any]:
    try:
        told = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise LayoutError(f"{file} must be JSON; {error}") from error
    if not isinstance(told, dict):
        raise LayoutError(f"{file} must be a JSON object; got {type(told).__name__}")
    return told
