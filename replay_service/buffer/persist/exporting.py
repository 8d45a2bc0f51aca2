"""Columns as files that other programs read: `.npz`, HDF5, and folders of memory-mapped columns, as TensorDicts write of themselves."""

from __future__ import annotations

import json
import os
import shutil
import uuid
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from replay_service.buffer.columns import numpy_view
from replay_service.buffer.persist.h5_tree import h5py_module
from replay_service.buffer.persist.stored_columns import StoredColumns
from replay_service.errors import LayoutError, key_name
from replay_service.payload import NUMPY_DTYPES
from replay_service.specs import Key

__all__ = ["export_columns", "export_format"]

Advance = Callable[[int], None]
HDF5_SUFFIXES = (".h5", ".hdf5", ".hdf")


def export_format(target: Path) -> str:
    """`"npz"`, `"hdf5"` or `"folder"`, by the suffix of `target`.

    Raises:
        ValueError: a suffix of none of them.
    """
    if target.suffix == ".npz":
        return "npz"
    if target.suffix in HDF5_SUFFIXES:
        return "hdf5"
    if not target.suffix:
        return "folder"
    raise ValueError(
        f"target ({target}) must end with .npz, .h5 or .hdf5, or have no suffix for a folder; got {target.suffix!r}"
    )


def export_columns(stored: StoredColumns, target: Path, chunk_rows: int, advance: Advance) -> None:
    """Writes all columns, the oldest record first, in the format that the suffix of `target` names.

    In archives and HDF5 files nested entries have names with slashes: `next/reward`. What is written appears when it is whole.

    Args:
        stored: the columns.
        target: what is written; it must not exist.
        chunk_rows: rows that are in memory at once.
        advance: is told of bytes that were written.

    Raises:
        FileExistsError: `target` exists.
        LayoutError: a dtype that the format does not know (bfloat16 and the like in archives and HDF5). Nothing was written.
        ModuleNotFoundError: HDF5 without h5py.
        OSError: it cannot be written.
    """
    kind = export_format(target)
    if target.exists():
        raise FileExistsError(f"target ({target}) must not exist; it does: choose another one, or remove it")
    if kind != "folder":
        _require_numpy(stored, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}.part"
    try:
        {"npz": _write_archive, "hdf5": _write_hdf5, "folder": _write_folder}[kind](stored, draft, chunk_rows, advance)
        os.rename(draft, target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True) if draft.is_dir() else draft.unlink(missing_ok=True)
        raise


def _require_numpy(stored: StoredColumns, target: Path) -> None:
    for key, column in stored.columns.items():
        if column.dtype not in NUMPY_DTYPES:
            raise LayoutError(
                f"{key_name(key)} ({str(column.dtype).removeprefix('torch.')}) must have a dtype that NumPy has, to be written to "
                f"{target.name}: export to a folder instead"
            )


def _chunks(stored: StoredColumns, key: Key, chunk_rows: int) -> Iterator[NDArray[np.generic]]:
    for start in range(0, len(stored), chunk_rows):
        yield numpy_view(stored.rows(key, start, min(start + chunk_rows, len(stored))).contiguous())


def _write_archive(stored: StoredColumns, draft: Path, chunk_rows: int, advance: Advance) -> None:
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for key, column in stored.columns.items():
            with archive.open(f"{'/'.join(key) or 'value'}.npy", "w", force_zip64=True) as file:
                described = {
                    "descr": np.lib.format.dtype_to_descr(NUMPY_DTYPES[column.dtype]),
                    "fortran_order": False,
                    "shape": tuple(column.shape),
                }
                np.lib.format.write_array_header_2_0(file, described)
                for chunk in _chunks(stored, key, chunk_rows):
                    file.write(_raw(chunk))
                    advance(chunk.nbytes)


def _write_hdf5(stored: StoredColumns, draft: Path, chunk_rows: int, advance: Advance) -> None:
    with h5py_module().File(draft, "w") as file:
        for key, column in stored.columns.items():
            made = file.create_dataset("/".join(key) or "value", tuple(column.shape), NUMPY_DTYPES[column.dtype])
            at = 0
            for chunk in _chunks(stored, key, chunk_rows):
                made[at : at + chunk.shape[0]] = chunk
                at += chunk.shape[0]
                advance(chunk.nbytes)


def _write_folder(stored: StoredColumns, draft: Path, chunk_rows: int, advance: Advance) -> None:
    metas: dict[Path, dict[str, Any]] = {draft: {}}
    for key, column in stored.columns.items():
        folder = draft
        for name in key[:-1]:
            metas[folder][name] = {"type": "TensorDict"}
            folder = folder / name
            metas.setdefault(folder, {})
        folder.mkdir(parents=True, exist_ok=True)
        name = key[-1] if key else "value"
        metas[folder][name] = _described(column)
        with open(folder / f"{name}.memmap", "wb") as file:
            for chunk in _chunks(stored, key, chunk_rows):
                file.write(_raw(chunk))
                advance(chunk.nbytes)
    for folder, meta in metas.items():
        folder.mkdir(parents=True, exist_ok=True)
        whole = {**meta, "shape": [len(stored)], "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>"}
        (folder / "meta.json").write_text(json.dumps(whole))
    length = {"metadata": {}, "is_pytree": False, "len": len(stored)}
    (draft / "storage_metadata.json").write_text(json.dumps(length))


def _described(column: Tensor) -> dict[str, Any]:
    return {"device": "cpu", "shape": list(column.shape), "dtype": str(column.dtype), "is_nested": False}


def _raw(chunk: NDArray[np.generic]) -> Any:
    """The bytes of a chunk."""
    return memoryview(chunk.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
