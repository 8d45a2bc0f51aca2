"""Nested dictionaries in HDF5 files: arrays and tensors as data sets, numbers as attributes, everything else pickled."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

__all__ = ["Pickled", "read_tree", "write_tree"]

FORMAT = 1


class Pickled(NamedTuple):
    """A value that is kept as a pickle."""

    value: Any


def write_tree(path: str | os.PathLike[str], name: str, tree: dict[str, Any], compression: str | None) -> None:
    """Writes `tree` as the content of something called `name`; the file appears at once or not at all.

    Raises:
        OSError: it cannot be written. What was there before stays.
    """
    target = Path(path)
    # Another thread may be writing the same file.
    partial = target.with_name(f".{target.name}.{os.getpid()}.{uuid.uuid4().hex}.partial")
    try:
        try:
            with _h5py().File(partial, "w") as file:
                file.attrs["format"], file.attrs["name"] = FORMAT, name
                _write(file, tree, compression)
        except RuntimeError as error:  # so HDF5 says that a disk is full, if only closing finds it out
            raise OSError(f"path ({target}) must be a place that can be written to and has room; {error}") from error
        os.replace(partial, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
        raise


def read_tree(path: str | os.PathLike[str], device: torch.device) -> tuple[str, dict[str, Any]]:
    """Name and content of a file; an empty name if it is not one of `write_tree`."""
    with _h5py().File(path, "r") as file:
        if file.attrs.get("format") != FORMAT:
            return "", {}
        return str(file.attrs["name"]), _read(file, device)


def _h5py() -> Any:
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise ImportError(
            "h5py must be installed to read and write HDF5 files: pip install 'replay-service[hdf5]'"
        ) from error


def _write(group: Any, tree: dict[str, Any], compression: str | None) -> None:
    for place, (key, value) in enumerate(tree.items()):
        # Names of entries may hold any character, also the slash that divides HDF5's own.
        name = f"{place}"
        if isinstance(value, dict):
            entry = group.create_group(name)
            _write(entry, value, compression)
            kind = "dict"
        elif isinstance(value, torch.Tensor):
            array = value.detach().cpu()
            bits = array.view(torch.uint8) if array.ndim and array.dtype == torch.bfloat16 else array
            entry = _array(group, name, bits.numpy(), compression)
            kind = f"tensor:{str(array.dtype).removeprefix('torch.')}"
        elif isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            entry, kind = _array(group, name, value, compression), "array"
        elif isinstance(value, bool | int | float | str) or value is None:
            entry, kind = group.create_dataset(name, data=json.dumps(value)), "json"
        else:
            content = pickle.dumps(value.value if isinstance(value, Pickled) else value)
            entry, kind = _array(group, name, np.frombuffer(content, np.uint8), compression), "pickle"
        entry.attrs["key"], entry.attrs["kind"] = key, kind


def _array(group: Any, name: str, array: Any, compression: str | None) -> Any:
    # A data set of no dimension or no element cannot be compressed.
    return group.create_dataset(name, data=array, compression=compression if array.ndim and array.size else None)


def _read(group: Any, device: torch.device) -> dict[str, Any]:
    entries = sorted(group.items(), key=lambda item: int(item[0]))
    return {str(entry.attrs["key"]): _value(entry, str(entry.attrs["kind"]), device) for _, entry in entries}


def _value(entry: Any, kind: str, device: torch.device) -> Any:
    if kind == "dict":
        return _read(entry, device)
    if kind == "json":
        return json.loads(entry[()])
    if kind == "pickle":
        return pickle.loads(entry[()].tobytes())
    array = np.asarray(entry[()])
    if kind == "array":
        return array
    dtype = getattr(torch, kind.partition(":")[2])
    return (
        torch.from_numpy(array).view(dtype).to(device)
        if dtype == torch.bfloat16
        else torch.from_numpy(array).to(device)
    )
