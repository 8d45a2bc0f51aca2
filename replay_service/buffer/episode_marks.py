"""Which stored entries tell where episodes end, and reading them from a storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import is_tensor_collection
from torch import Tensor

from replay_service.buffer.episode_columns import Kind
from replay_service.buffer.markers import END_KEYS, ID_KEYS
from replay_service.buffer.storages.base import Storage
from replay_service.buffer.trajectory import NEXT, as_key
from replay_service.errors import LayoutError, key_name
from replay_service.specs import Key

__all__ = ["EpisodeMarks", "entry_of", "read_marks"]

Values = NDArray[Any]


class EpisodeMarks:
    """End flags or trajectory ids of records, from the entries that hold them.

    Args:
        traj_key: the entry with trajectory ids; it counts even where `end_key` is named, too.
        end_key: the entry with end flags.
        end_keys: several entries with end flags; any of them ends an episode. Those that are not stored are left out.
        ends: end flags `[T(, *lanes)]` in slot order, for records that are not written any more.
        trajectories: ids `[T(, *lanes)]`, likewise.
        unmarked: nothing marks ends: what a lane holds is one trajectory.

    With none of them: trajectory ids where `markers.ID_KEYS` are stored, else the end flags `markers.END_KEYS` under `next`.

    Raises:
        TypeError: a key that is none, or more than one of `end_key`, `end_keys`, `ends`, `trajectories`; or one of the last two with
            `traj_key`.
    """

    def __init__(
        self,
        *,
        traj_key: Any = None,
        end_key: Any = None,
        end_keys: Sequence[Any] | None = None,
        ends: Any = None,
        trajectories: Any = None,
        unmarked: bool = False,
    ) -> None:
        named = {"end_key": end_key, "end_keys": end_keys, "ends": ends, "trajectories": trajectories}
        several = [name for name, value in named.items() if value is not None]
        if traj_key is not None and (ends is not None or trajectories is not None):
            several.append("traj_key")
        if len(several) > 1:
            raise TypeError(
                f"{' and '.join(several)} must not be given together: each of them marks the ends of episodes"
            )
        self._traj_key = None if traj_key is None else as_key("traj_key", traj_key)
        self._end_keys: list[Key] | None = None
        if end_key is not None:
            self._end_keys = [as_key("end_key", end_key)]
        elif end_keys is not None:
            self._end_keys = [as_key("end_keys", key) for key in end_keys]
        self._unmarked = unmarked
        self._given: tuple[Kind, Tensor] | None = None
        if ends is not None:
            self._given = ("ends", torch.as_tensor(ends, device="cpu").detach())
        elif trajectories is not None:
            self._given = ("ids", torch.as_tensor(trajectories, device="cpu").detach())

    @property
    def given(self) -> tuple[Kind, Values] | None:
        """The marks of all records that were handed over, `[T(, *lanes)]`, if any were."""
        return None if self._given is None else (self._given[0], self._given[1].numpy())

    def entries(self, storage: Storage) -> tuple[Kind, list[Key]]:
        """What the marks of the records of `storage`, which holds some, are made of.

        Raises:
            KeyError: a named entry is not stored, or nothing marks episodes.
        """
        if self._unmarked:
            return "ends", []
        if self._traj_key is not None:
            if not _is_stored(storage, self._traj_key):
                raise KeyError(f"traj_key ({key_name(self._traj_key)}) must be a stored entry of numbers")
            return "ids", [self._traj_key]
        if self._end_keys is not None:
            stored = [key for key in self._end_keys if _is_stored(storage, key)]
            if not stored:
                names = [key_name(key) for key in self._end_keys]
                raise KeyError(
                    f"end flags ({', '.join(names)}) must be a stored entry; name another by end_key or done_key"
                )
            return "ends", stored
        for key in ID_KEYS:
            if _is_stored(storage, key):
                return "ids", [key]
        flags: list[Key] = [(NEXT, name) for name in END_KEYS]
        stored = [key for key in flags if _is_stored(storage, key)]
        if not stored:
            raise KeyError(
                f"end_key must name the entry with end flags, or traj_key the one with trajectory ids: nothing is stored under "
                f"{[key_name(key) for key in (*ID_KEYS, *flags)]}"
            )
        return "ends", stored


def read_marks(storage: Storage, kind: Kind, keys: list[Key], records: Tensor) -> Values:
    """Flags (bool) or ids `[n]` of the flat records int64 `[n]`.

    Raises:
        LayoutError: several ids of one record, or ids that are no numbers.
    """
    if kind == "ids":
        ids = entry_of(storage, keys[0], records)
        if ids is None or ids.numel() != records.numel():
            shape = "none in some records" if ids is None else list(ids.shape)
            raise LayoutError(f"{key_name(keys[0])} must be one number per record; got {shape}")
        return ids.reshape(-1).numpy()
    flags = np.zeros(records.numel(), np.bool_)
    for key in keys:
        column = entry_of(storage, key, records)
        if column is None:
            raise LayoutError(f"{key_name(key)} must be in every record")
        flags |= (column.reshape(records.numel(), -1) != 0).any(1).numpy()
    return flags


def entry_of(storage: Storage, key: Key, records: Tensor) -> Tensor | None:
    """The entry `key` of flat records int64 `[n]` on the CPU, `[n, *shape]`, a copy; None where they have no such tensor."""
    if storage.columnar:
        if not _is_stored(storage, key):
            return None
        return storage.column(key).flatten(0, storage.ndim - 1)[records].cpu()
    values = [_looked_up(record, key) for record in storage.get(records)]
    if any(value is None for value in values):
        return None
    return torch.stack([torch.as_tensor(value, device="cpu").detach() for value in values])


def _is_stored(storage: Storage, key: Key) -> bool:
    if storage.columnar:
        return any(leaf.key == key for leaf in storage.leaves() or ())
    return _looked_up(storage.get(0), key) is not None


def _looked_up(record: Any, key: Key) -> Any:
    """The number or tensor that `record` has under `key`; None if there is none."""
    found = record
    for part in key:
        has_entries = isinstance(found, dict) or is_tensor_collection(found)
        found = found.get(part, None) if has_entries else None
    return found if isinstance(found, Tensor | np.ndarray | np.generic | int | float | bool) else None
