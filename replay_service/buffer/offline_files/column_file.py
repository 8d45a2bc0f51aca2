"""Files of whole columns: each `[T, *shape]`, in an `.npz` archive or in datasets of an HDF5 file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensordict import TensorDict

from replay_service.buffer.offline_files.column_names import (
    DONE,
    TERMINATED,
    TRAJECTORY,
    TRUNCATED,
    ColumnNames,
)
from replay_service.buffer.offline_files.offline_file import OfflineFile
from replay_service.buffer.offline_files.steps_layout import as_tensor, ends_of, steps_of, trajectory_numbers
from replay_service.errors import LayoutError
from replay_service.specs import Key

__all__ = ["ColumnFile"]

FLAGS = (TERMINATED, TRUNCATED, DONE)


class ColumnFile(OfflineFile):
    """Columns by name; only what is asked for is read, where the file allows that.

    Args:
        path: the file.
        found: its columns: anything with a shape that can be sliced.
        close: closes it.
        columns, extra: as `ColumnNames`. With `extra=True`, columns of another length than the observations are passed over.

    Raises:
        LayoutError: a column is missing, has another length, or does not hold what it should.
    """

    def __init__(
        self,
        path: str,
        found: Mapping[str, Any],
        close: Callable[[], Any],
        columns: Mapping[Any, str] | None = None,
        extra: bool | Sequence[str] = False,
    ) -> None:
        super().__init__(path)
        self._close = close
        chosen = ColumnNames(path, found, columns, extra).names
        needed = ColumnNames(path, found, columns).names
        first = next(iter(needed))
        self._steps = _length(found[needed[first]], needed[first], path)
        self._columns: dict[Key, Any] = {}
        self._names = chosen
        for key, name in chosen.items():
            if key not in needed and extra is True and found[name].shape[:1] != (self._steps,):
                continue
            if _length(found[name], name, path) != self._steps:
                raise LayoutError(
                    f"{name} of {path} ({found[name].shape[0]} rows) must have as many rows as {needed[first]}; got {self._steps}"
                )
            self._columns[key] = found[name]
        # Flags and ids are small, and needed whole: a trajectory's number depends on all that came before.
        self._ends = ends_of({key: self._columns[key][:] for key in FLAGS if key in self._columns}, path)
        self._trajectories = self._ids() if TRAJECTORY in self._columns else trajectory_numbers(self._ends)

    def __len__(self) -> int:
        return self._steps

    def keys(self) -> list[Key]:
        """The entries of what is read."""
        return sorted({*self._columns, *FLAGS, TRAJECTORY})

    def read(self, start: int, stop: int) -> TensorDict:
        """The steps from `start` to `stop`; raises LayoutError for columns that hold no numbers."""
        part = slice(start, stop)
        columns = {
            key: as_tensor(column[part], self._names[key], self.path)
            for key, column in self._columns.items()
            if key not in FLAGS and key != TRAJECTORY
        }
        ends = (self._ends[0][part], self._ends[1][part])
        return steps_of(columns, ends, self._trajectories[part], self.path)

    def close(self) -> None:
        """Closes the file."""
        self._close()

    def _ids(self) -> NDArray[np.int64]:
        ids = np.asarray(self._columns[TRAJECTORY][:])
        if ids.size != self._steps or ids.dtype.kind not in "iuf":
            raise LayoutError(
                f"{self._names[TRAJECTORY]} of {self.path} must be one number per step; got {ids.dtype}{list(ids.shape)}"
            )
        return ids.reshape(-1).astype(np.int64)


def _length(column: Any, name: str, path: str) -> int:
    if not column.shape:
        raise LayoutError(f"{name} of {path} must have one row per step; got a single value")
    return int(column.shape[0])
