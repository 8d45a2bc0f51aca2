"""The columnar storage whose columns are memory-mapped files: more records than memory holds, and readable by other programs."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from replay_service.buffer.columns import Column
from replay_service.buffer.storages.lazy_tensor import LazyTensorStorage
from replay_service.buffer.storages.mapped_files import MappedFolder
from replay_service.buffer.table import Table
from replay_service.structure import Leaf, Rows

__all__ = ["LazyMemmapStorage"]


class LazyMemmapStorage(LazyTensorStorage):
    """Records in memory-mapped files; the first batch fixes the layout and makes the files.

    Each column is one file of raw values, and `meta.json` beside them names keys, dtypes and shapes (`mapped_files` says how). Files
    take disk space as they are filled.

    Args:
        max_size: capacity in records (with `ndim` > 1: records of all lanes together).
        scratch_dir: the folder of the files, made when it is needed; None: a temporary one.
        device: `"cpu"`: a file is mapped into no other memory.
        ndim: leading dimensions that name a record: the first is time, the others are lanes.
        existsok: whether columns in `scratch_dir` that another storage left may be replaced.
        compilable, shared_init: accepted for drop-in use; sharing is asked for by the buffer (`shared=True`).
        auto_cleanup: remove the files when the storage is dropped or the process ends; None: if the folder is a temporary one. A process
            that is killed leaves them.

    Raises:
        TypeError, ValueError: `max_size` or `ndim` is not a positive integer, or `device` is not the CPU.
        FileExistsError: `scratch_dir` holds columns already, and `existsok` is False.
    """

    def __init__(
        self,
        max_size: int,
        *,
        scratch_dir: str | Path | None = None,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        existsok: bool = False,
        compilable: bool = False,
        shared_init: bool = False,
        auto_cleanup: bool | None = None,
    ) -> None:
        super().__init__(max_size, device=device, ndim=ndim, compilable=compilable, shared_init=shared_init)
        if self.device.type != "cpu":
            raise ValueError(
                f"device ({self.device}) must be cpu: files are mapped into its memory only; use LazyTensorStorage for another device"
            )
        self._folder = MappedFolder(scratch_dir, existsok)
        self._auto_cleanup = scratch_dir is None if auto_cleanup is None else auto_cleanup
        self._clean_up_later()

    @property
    def scratch_dir(self) -> Path | None:
        """The folder of the files; None until a temporary one was made."""
        return self._folder.path

    def add_columns(self, rows: Rows) -> None:
        """New columns, filled from `rows` `[n, *shape]` for the first `n` records and with zeros behind.

        Raises:
            LayoutError: a key lies under a tensor or names a level that holds others, or a bare tensor is stored. No file was made.
            OSError: the disk has not the space.
        """
        # The keys are tried without files first, so that none is left of those that are refused.
        self._filled_table().with_columns(
            [Column(leaf, torch.empty(0, *leaf.shape, dtype=leaf.dtype, device="cpu")) for leaf in rows.leaves()]
        )
        super().add_columns(rows)

    def release(self) -> None:
        """Removes the files if they go with the storage (`auto_cleanup`)."""
        if self._auto_cleanup:
            self.cleanup()

    def cleanup(self) -> bool:
        """Removes the files that this storage made, and the folder if it made that, too; whether there were any.

        Records can be read and written until the storage is dropped: the memory lasts as long as it is mapped.
        """
        return self._folder.remove()

    def drop(self, table: Table) -> None:
        """Removes the files of columns that will not be taken over: a storage that asked for new ones had none."""
        self._folder.remove()

    def _new_columns(self, leaves: Sequence[Leaf], records: int) -> list[Column]:
        columns = self._folder.allocate(leaves, records)
        return [column.shared() if self._is_shared else column for column in columns]

    def _columns_to_fill(self, leaves: Sequence[Leaf], records: int, filled: int) -> list[Column]:
        return self._new_columns(leaves, records)

    def __getstate__(self) -> dict[str, Any]:
        # What this process made is this process's to remove; a copy that makes columns of its own makes them elsewhere.
        return {**super().__getstate__(), "_folder": MappedFolder(None), "_auto_cleanup": True}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._clean_up_later()

    def _clean_up_later(self) -> None:
        if self._auto_cleanup:
            weakref.finalize(self, _remove_files, self._folder, os.getpid())


def _remove_files(folder: MappedFolder, owner: int) -> None:
    if os.getpid() == owner:  # a forked process drops its copy, not the files
        folder.remove()
