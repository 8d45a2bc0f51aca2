"""Opens files of recorded steps, by what is in them."""

from __future__ import annotations

import importlib
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from replay_service.buffer.offline_files.column_file import ColumnFile
from replay_service.buffer.offline_files.episode_file import EpisodeFile, is_episode_file
from replay_service.buffer.offline_files.mapped_dump import MappedDump, is_mapped_dump
from replay_service.buffer.offline_files.offline_file import OfflineFile
from replay_service.errors import LayoutError

__all__ = ["open_offline_file"]

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
ZIP_SIGNATURE = b"PK\x03\x04"
MINARI_FILES = ("main_data.hdf5", "data/main_data.hdf5")


def open_offline_file(
    path: str | os.PathLike[str],
    *,
    columns: Mapping[Any, str] | None = None,
    extra: bool | Sequence[str] = False,
) -> OfflineFile:
    """Opens a file of recorded steps.

    Args:
        path: an HDF5 file of episodes (Minari) or of columns, an `.npz` archive of columns, the folder of a Minari data set,
            or that of memory-mapped columns that another replay buffer dumped (`MappedDump`).
        columns: of files of columns: how entries are called there, as for `ColumnNames`.
        extra: of files of columns: further ones to keep, True for all.

    Raises:
        FileNotFoundError: there is no such file.
        LayoutError: it is of another kind, or lacks a column; the message names the file, what is missing and what is there.
        ModuleNotFoundError: it is an HDF5 file, and h5py is not installed.
        ValueError: `columns` or `extra` for a file of episodes.
    """
    if Path(path).is_dir() and is_mapped_dump(Path(path)):
        if columns is not None or extra:
            raise ValueError(f"columns and extra must be left out for {path}: a dumped buffer is read as it is")
        return MappedDump(Path(path))
    file = _located(Path(path))
    with file.open("rb") as opened:
        signature = opened.read(len(HDF5_SIGNATURE))
    if signature == HDF5_SIGNATURE:
        return _hdf5(file, columns, extra)
    if signature.startswith(ZIP_SIGNATURE):
        return _archive(file, columns, extra)
    raise LayoutError(
        f"{file} must be an HDF5 file or an .npz archive; its first bytes are {signature!r}: rewrite it as one of them"
    )


def _located(path: Path) -> Path:
    if path.is_dir():
        found = next((path / name for name in MINARI_FILES if (path / name).is_file()), None)
        if found is None:
            raise FileNotFoundError(
                f"{path} must be a file, or the folder of a Minari data set; it has none of {list(MINARI_FILES)}"
            )
        return found
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} must be a file of recorded steps; there is none: data sets are read from disk, so download it first"
        )
    return path


def _hdf5(path: Path, columns: Mapping[Any, str] | None, extra: bool | Sequence[str]) -> OfflineFile:
    try:
        h5py: Any = importlib.import_module("h5py")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"h5py must be installed to read {path}: pip install 'replay-service[hdf5]'", name="h5py"
        ) from error
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise LayoutError(f"{path} must be a whole HDF5 file; {error}") from error
    try:
        if is_episode_file(file):
            if columns is not None or extra:
                raise ValueError(f"columns and extra must be left out for {path}: a file of episodes has fixed names")
            return EpisodeFile(str(path), file)
        found: dict[str, Any] = {}
        file.visititems(lambda name, item: found.update({name: item}) if _is_column(item) else None)
        return ColumnFile(str(path), found, file.close, columns, extra)
    except BaseException:
        file.close()
        raise


def _is_column(item: Any) -> bool:
    return getattr(item, "shape", None) is not None  # groups have none, and neither have empty datasets


def _archive(path: Path, columns: Mapping[Any, str] | None, extra: bool | Sequence[str]) -> OfflineFile:
    try:
        # What is pickled could run code.
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise LayoutError(f"{path} must be a whole .npz archive of numbers; {error}") from error
    return ColumnFile(str(path), found, lambda: None, columns, extra)
