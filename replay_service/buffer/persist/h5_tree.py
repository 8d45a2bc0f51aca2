"""TensorDicts in HDF5 files: a group per level, a data set per tensor, and everything else as a JSON attribute.

h5py is imported when it is needed: it is an extra (`pip install replay-service[hdf5]`).
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import torch
from tensordict import NonTensorData, TensorDict, TensorDictBase
from torch import Tensor

from replay_service.buffer.columns import numpy_view
from replay_service.errors import CheckpointError

__all__ = ["h5py_module", "read_h5", "write_h5"]

DTYPE, PLAIN = "torch_dtype", "plain"


def h5py_module() -> Any:
    """The module h5py.

    Raises:
        ModuleNotFoundError: it is not installed; says how to.
    """
    try:
        return importlib.import_module("h5py")
    except ModuleNotFoundError:
        raise ModuleNotFoundError("h5py must be installed for HDF5 files: pip install 'replay-service[hdf5]'") from None


def write_h5(path: Path, data: TensorDictBase, settings: dict[str, Any]) -> None:
    """Writes a TensorDict as a new file; `settings` go to `create_dataset` (compression and the like).

    Raises:
        OSError: the file cannot be written.
    """
    with h5py_module().File(path, "w") as file:
        _write_group(file, data, settings)


def read_h5(path: Path) -> TensorDict:
    """The TensorDict that a file holds.

    Raises:
        CheckpointError: it is no HDF5 file, or not one of these.
    """
    try:
        with h5py_module().File(path, "r") as file:
            return _read_group(file)
    except (OSError, KeyError, ValueError) as error:
        raise CheckpointError(f"file ({path}) must be an HDF5 file of TensorDicts; {error}") from error


def _write_group(group: Any, data: TensorDictBase, settings: dict[str, Any]) -> None:
    for key in data.keys():  # noqa: SIM118 - not in tensordict
        value = data.get(key)
        if isinstance(value, Tensor):
            array = numpy_view(value.detach().cpu().contiguous())
            # Compression and the like are for arrays; a single number takes none.
            made = group.create_dataset(key, data=array, **(settings if array.ndim and array.size else {}))
            made.attrs[DTYPE] = str(value.dtype).removeprefix("torch.")
        elif isinstance(value, TensorDictBase):
            _write_group(group.create_group(key), value, settings)
        else:
            group.attrs[f"{PLAIN}:{key}"] = json.dumps(value.data if isinstance(value, NonTensorData) else value)


def _read_group(group: Any) -> TensorDict:
    data = TensorDict({}, batch_size=[])
    for name, item in group.items():
        if hasattr(item, "items"):
            data[name] = _read_group(item)
        else:
            tensor = torch.from_numpy(item[()]) if item.shape else torch.tensor(item[()], device="cpu")
            dtype = getattr(torch, item.attrs[DTYPE])
            data[name] = tensor if tensor.dtype == dtype else tensor.view(dtype)
    for name, text in group.attrs.items():
        if name.startswith(f"{PLAIN}:"):
            data.set_non_tensor(name.removeprefix(f"{PLAIN}:"), json.loads(text))
    return data
