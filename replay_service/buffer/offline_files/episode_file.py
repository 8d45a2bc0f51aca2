"""Files of episodes, as Minari keeps them in HDF5: one group for each, with one observation more than steps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from tensordict import TensorDict

from replay_service.buffer.offline_files.column_names import (
    ACTION,
    NEXT_OBSERVATION,
    OBSERVATION,
    REWARD,
    TERMINATED,
    TRUNCATED,
)
from replay_service.buffer.offline_files.offline_file import OfflineFile
from replay_service.buffer.offline_files.steps_layout import as_tensor, ends_of, steps_of
from replay_service.errors import LayoutError
from replay_service.specs import Key

__all__ = ["EpisodeFile", "is_episode_file"]

EPISODE = re.compile(r"episode_(\d+)")
NEEDED = ("observations", "actions", "rewards", "terminations", "truncations")


def is_episode_file(names: Any) -> bool:
    """Whether a file with these groups is one of episodes."""
    return any(EPISODE.fullmatch(name) for name in names)


class EpisodeFile(OfflineFile):
    """Episodes in groups `episode_0` on: `observations` `[T + 1, …]`, `actions`, `rewards`, `terminations`, `truncations` `[T, …]`.

    Observations and actions that are groups themselves, of dicts or tuples, become nested entries. Trajectory ids are the numbers of the
    episodes. An episode whose last step is no end was cut off there by whoever recorded it, and that step counts as truncated.

    Args:
        path: the file.
        file: the open HDF5 file.

    Raises:
        LayoutError: an episode lacks a column, or its columns differ in their length.
    """

    def __init__(self, path: str, file: Any) -> None:
        super().__init__(path)
        self._file = file
        numbers = sorted(int(found[1]) for name in file if (found := EPISODE.fullmatch(name)))
        self._numbers = np.array(numbers, np.int64)
        lengths = np.array([self._checked_length(number) for number in numbers], np.int64)
        self._starts = np.concatenate([[0], np.cumsum(lengths)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def keys(self) -> list[Key]:
        """The entries of what is read."""
        return [] if not len(self) else sorted(_as_tuple(key) for key in self.read(0, 1).keys(True, True))

    def read(self, start: int, stop: int) -> TensorDict:
        """The steps from `start` to `stop`."""
        parts = [self._part(*bounds) for bounds in self._parts(start, stop)]
        if not parts:
            return TensorDict(batch_size=[0]) if not len(self) else self.read(0, 1)[:0]
        return parts[0] if len(parts) == 1 else TensorDict.cat(parts)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _parts(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Episodes that have steps in a range: place, and first and last step in it."""
        place = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            begin, end = int(self._starts[place]), int(self._starts[place + 1])
            if end > start:
                yield place, start - begin, min(stop, end) - begin
                start = min(stop, end)
            place += 1

    def _part(self, place: int, start: int, stop: int) -> TensorDict:
        """Steps of one episode."""
        number = int(self._numbers[place])
        group, part = self._file[f"episode_{number}"], slice(start, stop)
        columns: dict[Key, Any] = {}
        for name, column in _columns(group["observations"]):
            values = as_tensor(column[start : stop + 1], f"{group.name}/observations", self.path)
            columns[(*OBSERVATION, *name)], columns[(*NEXT_OBSERVATION, *name)] = values[:-1], values[1:].clone()
        for name, column in _columns(group["actions"]):
            columns[(*ACTION, *name)] = as_tensor(column[part], f"{group.name}/actions", self.path)
        columns[REWARD] = as_tensor(group["rewards"][part], f"{group.name}/rewards", self.path)
        flags = {TERMINATED: group["terminations"][part], TRUNCATED: group["truncations"][part]}
        terminated, truncated = ends_of(flags, self.path)
        if stop == self._starts[place + 1] - self._starts[place] and not terminated[-1]:
            truncated[-1] = True
        return steps_of(columns, (terminated, truncated), np.full(stop - start, number, np.int64), self.path)

    def _checked_length(self, number: int) -> int:
        group = self._file[f"episode_{number}"]
        missing = [name for name in NEEDED if name not in group]
        if missing:
            raise LayoutError(f"episode_{number} of {self.path} must have {missing}; it has {sorted(group)}")
        steps = int(group["rewards"].shape[0])
        for name in NEEDED:
            wanted = steps + (name == "observations")
            for parts, column in _columns(group[name]):
                if column.shape[:1] != (wanted,):
                    shown = "/".join((name, *parts))
                    raise LayoutError(
                        f"{shown} of episode_{number} in {self.path} must have {wanted} rows; got {list(column.shape)}"
                    )
        return steps


def _columns(found: Any, prefix: Key = ()) -> Iterator[tuple[Key, Any]]:
    """The datasets of a group by their place in it; a dataset itself has the place `()`."""
    if hasattr(found, "shape"):
        yield prefix, found
        return
    for name in found:
        yield from _columns(found[name], (*prefix, name))


def _as_tuple(key: Any) -> Key:
    return (key,) if isinstance(key, str) else tuple(key)
