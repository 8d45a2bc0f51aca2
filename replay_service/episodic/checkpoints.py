"""Checkpoints of an episodic buffer: the folders of `buffer.persist`, in which nothing is pickled.

manifest.json                  kind, class, rings and settings; size and checksum of every file
state.json, state/             columns of numbers, rings, totals, what draws depend on
objects/000.json, objects/000/ a column of objects; one such for each
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from replay_service.buffer.persist.draft import Draft
from replay_service.buffer.persist.lock_meter import LockMeter
from replay_service.buffer.persist.reading import Checkpoint
from replay_service.buffer.persist.tree_files import read_tree, write_tree
from replay_service.episodic.saving import BufferSaving
from replay_service.errors import CheckpointError, LayoutError, ReplayError, key_name
from replay_service.records import SaveReceipt

__all__ = ["BufferCheckpoints"]

KIND, STATE, OBJECTS = "buffer of steps", "state", "objects"
DECISIVE = ("ignore_obs_next", "save_only_last_obs", "alpha")
"""Settings that say what is stored, or what it means."""


class BufferCheckpoints(BufferSaving):
    """Saving a buffer to disk, while it is used, and loading it."""

    _last_saved: Path | None = None

    def dumps(self, path: str | os.PathLike[str], *, timeout: float | None = None) -> SaveReceipt:
        """Saves the buffer as a checkpoint: a folder, which takes its place at `path` in one step when it is whole.

        What is saved is the moment of the call. The buffer's lock is held while its steps are copied in memory
        (`longest_lock_s`), which needs room for them once more; they are written after it, while other calls go on.
        Pieces of columns (a megabyte) that are as in the buffer's last checkpoint, or in the one at `path`, are linked from
        there. Which ones these are, digests of all of them tell: columns of steps keep no account of writes.

        Args:
            path: free, an empty folder, or a checkpoint, which is replaced.
            timeout: accepted as by hosted buffers; nothing here waits.

        Returns:
            what was written, and how long other calls were kept waiting.

        Raises:
            CheckpointError: something else lies at `path`, or an entry holds objects that can only be pickled. Nothing was
                changed there.
            OSError: the disk is full, or cannot be written to. Nothing was changed there.
        """
        begun, meter = time.perf_counter(), LockMeter(self.lock)
        with Draft(path, KIND, self._last_saved) as draft:
            with meter.hold():
                state = self.state_dict()
            _write(draft, state)
            manifest = draft.commit(self._described())
            self._last_saved = draft.path
        return draft.receipt(manifest, begun, meter)

    def loads(self, path: str | os.PathLike[str], *, timeout: float | None = None) -> None:
        """Loads a checkpoint: the next adds, draws and totals are those of the buffer that was saved.

        How steps are read (`stack_num`, `sample_avail`) stays this buffer's own. Everything is read, checked and laid out
        before the lock is taken and the first thing changes, so that a checkpoint that is refused leaves the buffer as it
        is. Tensors go where the buffer has that entry already, else to the device that they came from, if there is one.

        Args:
            path: a checkpoint that `dumps` of a buffer of the same class wrote.
            timeout: accepted as by hosted buffers; nothing here waits.

        Raises:
            FileNotFoundError: nothing lies at `path`.
            CheckpointError: what lies there is no whole checkpoint of a buffer of this class, or one of a newer version.
            LayoutError: it has other rings, or a setting (`DECISIVE`) that makes its steps others.
        """
        source = Checkpoint(path, KIND)
        self._require_alike(source)
        try:
            found = self._restored(self._read(source))
        except ReplayError:
            raise
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
            raise CheckpointError(
                f"path ({source.folder}) must hold the state of a {type(self).__name__}; {type(error).__name__}: {error}"
            ) from error
        with self.lock:
            self._take_over(found)
            self._last_saved = source.folder

    def dump(self, path: str | os.PathLike[str]) -> SaveReceipt:
        """As `dumps`."""
        return self.dumps(path)

    def save(self, path: str | os.PathLike[str]) -> SaveReceipt:
        """As `dumps`."""
        return self.dumps(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """As `loads`."""
        self.loads(path)

    def _described(self) -> dict[str, Any]:
        """What the manifest says of the buffer; all of it is the same as long as the buffer lives."""
        settings = {name: float(self._made_with[name]) for name in DECISIVE if name in self._made_with}
        rings = np.diff(self._rings.edges).tolist()
        return {"class": type(self).__name__, "rings": rings, "settings": settings}

    def _require_alike(self, source: Checkpoint) -> None:
        mine = self._described()
        saved = {name: source.entry(name) for name in mine}
        if saved["class"] != mine["class"]:
            raise CheckpointError(
                f"path ({source.folder}) must be the checkpoint of a {mine['class']}; got one of a {saved['class']}"
            )
        if saved["rings"] != mine["rings"]:
            raise LayoutError(
                f"rings ({_sizes(mine['rings'])}) must be those of the buffer that was saved in {source.folder}; got "
                f"{_sizes(saved['rings'])}: make a buffer of that size"
            )
        for name, value in mine["settings"].items():
            if source.entry("settings", name) != value:
                raise LayoutError(
                    f"{name} ({self._made_with[name]}) must be as when {source.folder} was saved; got "
                    f"{type(self._made_with[name])(saved['settings'][name])}: make the buffer with that"
                )

    def _read(self, source: Checkpoint) -> dict[str, Any]:
        """The state in a checkpoint, as `state_dict` gives it."""
        state: dict[str, Any] = read_tree(source, STATE)
        columns = {}
        for name, column in state["columns"].items():
            if "objects" in column:
                columns[name] = _as_objects(read_tree(source, _objects(column["objects"])), column["shape"])
            elif "device" in column:
                columns[name] = column["rows"].to(self._device_for(name, column["device"]))
            else:
                columns[name] = column["rows"].numpy().view(np.dtype(column["dtype"])).reshape(column["shape"])
        return {**state, "columns": columns}

    def _device_for(self, name: str, saved: str) -> torch.device:
        known = self._store.columns.get(tuple(json.loads(name)))
        if known is not None and isinstance(known.whole, Tensor):
            return known.whole.device
        try:
            return torch.empty(0, device=saved).device
        except (RuntimeError, AssertionError):  # this machine has no such device
            return torch.device("cpu")


def _write(draft: Draft, state: dict[str, Any]) -> None:
    """Writes a state; of arrays and tensors the bytes as they lie in memory."""
    columns: dict[str, Any] = {}
    objects = 0
    for name, rows in state["columns"].items():
        if isinstance(rows, Tensor):
            columns[name] = {"rows": rows, "device": str(rows.device)}
        elif rows.dtype.kind == "O":
            columns[name] = {"objects": objects, "shape": list(rows.shape)}
            _write_objects(draft, _objects(objects), rows, name)
            objects += 1
        else:
            flat = torch.from_numpy(np.ascontiguousarray(rows).reshape(-1).view(np.uint8))
            columns[name] = {"rows": flat, "dtype": rows.dtype.str, "shape": list(rows.shape)}
    write_tree(draft, STATE, {**state, "columns": columns})


def _write_objects(draft: Draft, file: str, rows: Any, name: str) -> None:
    try:
        write_tree(draft, file, rows.reshape(-1).tolist())
    except CheckpointError as error:
        place = str(error).partition(" must be ")[0].removeprefix("data")
        raise CheckpointError(
            f"{key_name(tuple(json.loads(name)))}{place} must be made of tensors, arrays, texts, numbers and containers of "
            "these to be in a checkpoint, where nothing is pickled; use save_hdf5, or pickle the buffer"
        ) from error


def _as_objects(items: list[Any], shape: list[int]) -> Any:
    rows = np.empty(len(items), object)
    for place, item in enumerate(items):
        rows[place] = item
    return rows.reshape(shape)


def _objects(number: int) -> str:
    return f"{OBJECTS}/{number:03d}"


def _sizes(rings: list[int]) -> str:
    return f"{len(rings)} of {sum(rings)} steps, {rings[:4]}{'…' if len(rings) > 4 else ''}"
