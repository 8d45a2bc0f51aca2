"""The storages of several buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from replay_service.buffer.ensemble.joint_lock import JointLock
from replay_service.buffer.ensemble.loading import load_each, states_of
from replay_service.buffer.ensemble.members import MemberIndex, groups_of, member_index
from replay_service.buffer.generations import Generations
from replay_service.buffer.index import Index
from replay_service.buffer.persist.checkpointers.base import StorageCheckpointerBase
from replay_service.buffer.persist.checkpointers.ensemble import StorageEnsembleCheckpointer
from replay_service.buffer.storages.base import Batch, Storage

__all__ = ["StorageEnsemble"]


class StorageEnsemble(Storage):
    """Several storages, each with its own layout and capacity. Records are read and changed here, and written to one of the storages.

    A record is named by the number of its storage and its slot there: `{"buffer_ids": …, "index": …}`. Inside it has one number,
    `record * storages + storage`, which stays the same however the storages grow.

    Args:
        *storages: the storages; all with the same number of dimensions.
        transforms: what the records of each storage go through on their way out, or None for one of them or for all.

    Raises:
        TypeError: one of them is no storage.
        ValueError: there is none, one comes twice, they differ in `ndim`, or there is not one transform for each.
    """

    def __init__(self, *storages: Storage, transforms: Sequence[Any] | None = None) -> None:
        if not storages:
            raise ValueError("storages must be at least one; got none")
        for place, storage in enumerate(storages):
            if not isinstance(storage, Storage):
                raise TypeError(f"storages[{place}] must be a Storage; got {type(storage).__name__}")
            if any(storage is other for other in storages[:place]):
                raise ValueError(f"storages[{place}] must be a storage of its own; it comes twice")
        if len({storage.ndim for storage in storages}) > 1:
            raise ValueError(f"storages must have the same ndim; got {[storage.ndim for storage in storages]}")
        if transforms is not None and len(transforms) != len(storages):
            raise ValueError(f"transforms ({len(transforms)}) must be one per storage; got {len(storages)} storages")
        super().__init__(sum(storage.max_size for storage in storages))
        self.storages = tuple(storages)
        self.transforms = None if transforms is None else list(transforms)
        self.ndim = storages[0].ndim
        self.columnar = all(storage.columnar for storage in storages)
        self.lock = JointLock(self.storages)

    def __len__(self) -> int:
        return sum(map(len, self.storages))

    # -- names of records -------------------------------------------------------------------------------------------

    def joined(self, member: int, records: Tensor) -> Tensor:
        """The numbers here of the flat records int64 `[n]` of storage `member`."""
        return records * len(self.storages) + member

    def split(self, records: Tensor) -> tuple[Tensor, Tensor]:
        """The storages of records int64 `[n]`, and their flat numbers there."""
        return records % len(self.storages), torch.div(records, len(self.storages), rounding_mode="floor")

    def named(self, index: Any) -> MemberIndex:
        """The records that `index` names, whether or not they are there; errors as those of `member_index`."""
        return member_index(index, len(self.storages))

    def flat_slots(self, index: Index) -> Tensor:
        """The numbers of the records that `index` names.

        Raises:
            IndexError: a record that is not there.
        """
        named = self.named(index)
        numbers = torch.zeros(len(named), dtype=torch.int64, device="cpu")
        for member, rows in named.groups():
            numbers[rows] = self.joined(member, self.storages[member].flat_slots(named.local[rows]))
        return numbers

    def coordinates(self, records: Tensor) -> tuple[Tensor, ...]:
        """Storage, slot and lanes of records, one int64 `[n]` each."""
        members, local = self.split(records)
        found = torch.zeros(self.ndim, records.numel(), dtype=torch.int64, device="cpu")
        for member, rows in groups_of(members):
            found[:, rows] = torch.stack(self.storages[member].coordinates(local[rows]))
        return (members, *found.unbind(0))

    def contains(self, item: Any) -> bool | Tensor:
        """Flags of the shape of `item["buffer_ids"]`: whether slot `index` of that storage holds a record."""
        named = self.named(item)
        held = torch.zeros(len(named), dtype=torch.bool, device="cpu")
        for member, rows in named.groups():
            slots = named.local[rows] if named.local.ndim == 1 else named.local[rows, 0]
            held[rows] = torch.as_tensor(self.storages[member].contains(slots), device="cpu")
        return held.reshape(named.shape)

    # -- records ----------------------------------------------------------------------------------------------------

    def get(self, item: Any) -> Any:
        """Records, one batch for each place of the first dimension of `item`: a list of (number of the storage, its records).

        Args:
            item: `buffer_ids` `[parts]` or `[parts, rows]`, and `index` `[parts, rows]`; one storage per part.

        Raises:
            IndexError: a record that is not there, or a part with records of several storages.
        """
        named = self.named(item)
        parts = named.shape[0] if named.shape else 1
        ids, local = named.buffer_ids.reshape(parts, -1), named.local.reshape(parts, -1, *named.local.shape[1:])
        if len(named.shape) < 2:
            local = torch.as_tensor(item["index"], device="cpu").to(torch.int64).reshape(parts, -1)
        found = []
        for part in range(parts):
            members = sorted(set(ids[part].tolist()))
            if len(members) != 1:
                raise IndexError(f"index.buffer_ids[{part}] must name one storage; got {members}")
            records = self.storages[members[0]].get(local[part])
            change = None if self.transforms is None else self.transforms[members[0]]
            found.append((members[0], records if change is None else change(records)))
        return found

    def __getitem__(self, index: Any) -> Any:
        """A storage by its number, an ensemble of some of them by a slice or a list of numbers, or else records, as `get`."""
        if isinstance(index, int | np.integer) and not isinstance(index, bool):
            return self.storages[int(index)]
        if isinstance(index, slice | list | range):
            places = range(len(self.storages))[index] if isinstance(index, slice) else index
            chosen = None if self.transforms is None else [self.transforms[place] for place in places]
            return StorageEnsemble(*(self.storages[place] for place in places), transforms=chosen)
        return self.get(index)

    def __setitem__(self, index: Any, data: Any) -> None:
        raise _read_only("storage[…] = …")

    def extend(self, value: Any) -> None:
        """Refuses."""
        raise _read_only("extend")

    def add(self, value: Any) -> None:
        """Refuses."""
        raise _read_only("add")

    def prepare(self, data: Any) -> Batch:
        """Refuses."""
        raise _read_only("prepare")

    def prepare_one(self, data: Any) -> Batch:
        """Refuses."""
        raise _read_only("prepare_one")

    def set(self, cursor: Index, data: Any, *, set_cursor: bool = True) -> None:
        """Refuses."""
        raise _read_only("set")

    def empty(self) -> None:
        """Forgets the records of all storages."""
        for storage in self.storages:
            storage.empty()

    def release(self) -> None:
        """Removes what would outlive the process."""
        for storage in self.storages:
            storage.release()

    def track_generations(self) -> Generations:
        """Refuses: every storage has stamps of its own."""
        raise _read_only("track_generations")

    # -- persistence ------------------------------------------------------------------------------------------------

    def default_checkpointer(self) -> StorageCheckpointerBase:
        """Each storage by its own."""
        return StorageEnsembleCheckpointer()

    def state_dict(self) -> dict[str, Any]:
        """The states of the storages by their numbers, by copy."""
        return states_of(self.storages)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the states over, by copy; all or none.

        Raises:
            KeyError, ValueError: not one state for each storage.
            LayoutError: records that do not fit. Nothing was loaded.
        """
        load_each(self.storages, state_dict)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(type(storage).__name__ for storage in self.storages)})"


def _read_only(call: str) -> RuntimeError:
    return RuntimeError(f"{call} must be asked of one storage: an ensemble of them does not know which one is meant")
