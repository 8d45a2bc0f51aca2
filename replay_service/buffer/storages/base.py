"""The storage interface: where records lie. A storage knows slots and bytes; writers choose slots, samplers draw them."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from replay_service.buffer.counts import positive_integer
from replay_service.buffer.generations import Generations
from replay_service.buffer.index import Index, as_slots
from replay_service.buffer.persist.checkpointers.base import StorageCheckpointerBase, checked_checkpointer
from replay_service.buffer.persist.checkpointers.state import StateCheckpointer
from replay_service.specs import Key, Spec
from replay_service.structure import Leaf, Rows

__all__ = ["Batch", "Storage", "WriteListener"]

RLOCK = type(threading.RLock())


class Batch(Protocol):
    """Validated records on their way into a storage: they have a length and can be sliced."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Any: ...

    def take(self, rows: Tensor, /) -> Any:
        """The records `rows` int64 `[n]`, as such a batch."""


class WriteListener(Protocol):
    """Somebody who wants to know of records that were changed in place."""

    def mark_update(self, index: Index) -> None:
        """Is told of the records at `index`."""


class Storage(ABC):
    """Base of all storages.

    Args:
        max_size: capacity in records.
        checkpointer: how `dumps` and `loads` write the records; None takes the storage's own.
        compilable: accepted for drop-in use; nothing here needs it.

    Attributes:
        lock: held around every call that reads or writes records; on the storage, so that buffers that share one exclude each other.
        save_lock: held during a save: there is one at a time.
        last_saved: the checkpoint that this storage was saved in, or loaded from, last; a later save links from it what did not change.
        generator: the buffer's random generator, or None for one of torch's own. Set by the buffer, read by samplers.
        ndim: leading dimensions that name a record; the first is time, the others are lanes.

    Raises:
        TypeError, ValueError: `max_size` is not a positive integer.
    """

    ndim: int = 1

    columnar: bool = False
    """Whether records lie in columns of a fixed layout: then entries can be read and patched by key. Else `get` gives lists of records."""

    def __init__(self, max_size: int, checkpointer: Any = None, compilable: bool = False) -> None:
        self.max_size = positive_integer(max_size, "max_size")
        self.lock: AbstractContextManager[Any] = threading.RLock()
        self.generator: torch.Generator | None = None
        self._checkpointer: StorageCheckpointerBase | None = checkpointer
        self.save_lock: Any = threading.Lock()
        self.last_saved: Path | None = None
        self._generations: Generations | None = None
        self._listeners: list[WriteListener] = []

    # -- records ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def __len__(self) -> int:
        """Number of filled records."""

    @abstractmethod
    def prepare(self, data: Any) -> Batch:
        """Validates a batch of records against what is stored and brings it into the storage's own form.

        Nothing changes here, so that a refused batch costs nothing; what is returned can be written without a check.

        Raises:
            LayoutError: a key is missing or extra, a dtype or row shape differs, or leaves disagree in their length.
        """

    @abstractmethod
    def prepare_one(self, data: Any) -> Batch:
        """As `prepare`, for one record without a leading dimension."""

    @abstractmethod
    def set(self, cursor: Index, data: Any, *, set_cursor: bool = True) -> None:
        """Writes records (raw, or prepared) into the slots `cursor`; `set_cursor` lets them count as filled."""

    @abstractmethod
    def get(self, index: Index) -> Any:
        """The records at `index`, as copies, in the form they were handed over in.

        Raises:
            IndexError: an index outside what is filled.
        """

    @abstractmethod
    def empty(self) -> None:
        """Forgets all records; every stamp given out so far becomes stale."""

    def contains(self, item: int | Tensor) -> bool | Tensor:
        """Whether slot `item` holds a record; for integers of any shape flags of the same shape."""
        held = (item >= 0) & (item < self.filled) if isinstance(item, Tensor) else 0 <= item < self.filled
        return bool(held) if isinstance(held, Tensor) and held.ndim == 0 else held

    def __getitem__(self, index: Index) -> Any:
        return self.get(index)

    def __setitem__(self, index: Index, data: Any) -> None:
        self.set(index, data, set_cursor=False)
        for listener in self._listeners:
            listener.mark_update(index)

    def release(self) -> None:  # noqa: B027 - most storages hold memory only
        """Is told that the process ends soon: removes what would outlive it."""

    # -- shape ------------------------------------------------------------------------------------------------------

    @property
    def slots(self) -> int:
        """Capacity along the first dimension: what a writer's cursor runs over."""
        return self.max_size

    @property
    def filled(self) -> int:
        """Filled slots along the first dimension."""
        return len(self)

    @property
    def lanes(self) -> int:
        """Records per slot: 1, or the product of the dimensions after the first."""
        return 1

    @property
    def shape(self) -> torch.Size:
        """Capacity per dimension."""
        return torch.Size([self.slots])

    def flatten(self) -> Storage:
        """A storage with one dimension over the same records; with one dimension already, the storage itself."""
        return self

    def leaves(self) -> tuple[Leaf, ...] | None:
        """The layout of a dense storage; None if records have no fixed layout (yet)."""
        return None

    def spec(self) -> Spec | None:
        """How the leaves are put together; None as for `leaves`."""
        return None

    def read_into(self, slots: Tensor, outs: Sequence[Tensor]) -> None:
        """Gathers the records `slots` int64 `[n]` into `outs`, one `[n, *shape]` per leaf, in the order of `leaves()`."""
        raise TypeError(f"{type(self).__name__} has no fixed layout to read into; use get")

    def column(self, key: str | Key) -> Tensor:
        """The stored column `[slots(, *lanes), *shape]` under `key` (a view: do not write to it).

        Raises:
            KeyError: no such column; what exists is listed.
        """
        raise TypeError(f"{type(self).__name__} has no columns")

    def write_cells(self, key: str | Key, values: Tensor, cells: Tensor) -> None:
        """Writes `values` `[n, *shape]` into one column at the flat records `cells` int64 `[n]`.

        Raises:
            LayoutError: another dtype, row shape or number of rows.
        """
        raise TypeError(f"{type(self).__name__} has no columns")

    def add_columns(self, rows: Rows) -> None:
        """New columns, filled from `rows` `[n, *shape]` for the first `n` records and with zeros behind."""
        raise TypeError(f"{type(self).__name__} has no columns")

    def flat_slots(self, index: Index) -> Tensor:
        """Flat record numbers int64 `[n]` of `index` (coordinates of several dimensions become one number)."""
        return as_slots(index, len(self))

    def coordinates(self, records: Tensor) -> tuple[Tensor, ...]:
        """Coordinates (slot, *lane) of flat record numbers int64 `[n]`, one int64 `[n]` per dimension."""
        return (records,)

    def all_cells(self, slots: Tensor) -> Tensor:
        """Coordinates int64 `[n * lanes, ndim]` of every record in `slots` int64 `[n]`, slot by slot."""
        return slots.unsqueeze(1)

    def lanes_of(self, batch: Batch) -> int:
        """Records per slot of a prepared batch (the first batch fixes it)."""
        return self.lanes

    # -- sharing ----------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """How often the storage was emptied."""
        return 0

    def share(self) -> None:
        """Moves the records, also those to come, to memory that processes started from this one see.

        Raises:
            TypeError: records of this storage are Python objects, or lie on another device.
        """
        raise TypeError(f"share must have a columnar storage on the CPU; got {type(self).__name__}")

    def catch_up(self, filled: int, epoch: int) -> None:
        """Takes over how many slots another process filled, and how often it emptied them."""
        raise TypeError(f"{type(self).__name__} is not shared")

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["_listeners"] = []  # a buffer that is copied attaches itself again
        if isinstance(self.lock, RLOCK):  # one of this process; a shared one goes along
            del state["lock"]
        del state["save_lock"]
        state["last_saved"] = None
        if self.generator is not None:  # as bytes: torch's own way breaks for processes that are started
            state["generator"] = (str(self.generator.device), self.generator.get_state().numpy().tobytes())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"lock": threading.RLock(), "save_lock": threading.Lock(), **state})
        if self.generator is not None:
            device, saved = state["generator"]
            self.generator = torch.Generator(device)
            self.generator.set_state(torch.frombuffer(bytearray(saved), dtype=torch.uint8))

    # -- stamps and listeners ---------------------------------------------------------------------------------------

    @property
    def generations(self) -> Generations | None:
        """Write counters per slot, or None as long as no writer tracks them."""
        return self._generations

    def track_generations(self) -> Generations:
        """The write counters; the first writer that asks creates them, later ones share them."""
        if self._generations is None:
            self._generations = Generations(self.slots)
        return self._generations

    @property
    def cursor(self) -> int:
        """The slot that is written next, as the writer of a buffer that holds this storage tells; else the first free one, or 0."""
        for listener in self._listeners:
            cursor: int | None = getattr(getattr(listener, "writer", None), "cursor", None)
            if cursor is not None:
                return cursor
        return self.filled % self.slots

    @property
    def attached(self) -> int:
        """Number of buffers that hold this storage."""
        return len(self._listeners)

    def attach(self, buffer: WriteListener) -> None:
        """Lets `buffer.mark_update(index)` know of records written through `storage[index] = data`."""
        if not any(listener is buffer for listener in self._listeners):
            self._listeners.append(buffer)

    def detach(self, buffer: WriteListener) -> None:
        """Forgets a buffer that was attached."""
        self._listeners = [listener for listener in self._listeners if listener is not buffer]

    # -- persistence ------------------------------------------------------------------------------------------------

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Copies of everything that `load_state_dict` needs."""

    @abstractmethod
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a state over, by copy."""

    def default_checkpointer(self) -> StorageCheckpointerBase:
        """The checkpointer of a storage that was given none: what `state_dict` says, as it is."""
        return StateCheckpointer()

    @property
    def checkpointer(self) -> StorageCheckpointerBase:
        """How records are saved and loaded."""
        if self._checkpointer is None:
            self._checkpointer = self.default_checkpointer()
        return self._checkpointer

    @checkpointer.setter
    def checkpointer(self, value: StorageCheckpointerBase | None) -> None:
        self._checkpointer = checked_checkpointer(value)

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Saves the records as a checkpoint of their own in the folder `path`; as the checkpointer's `dumps`."""
        self.checkpointer.dumps(self, path)

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Loads what `dumps` saved; as the checkpointer's `loads`."""
        self.checkpointer.loads(self, path)

    def dump(self, path: str | os.PathLike[str]) -> None:
        """As `dumps`."""
        self.dumps(path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """As `dumps`."""
        self.dumps(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """As `loads`."""
        self.loads(path)

    def register_save_hook(self, hook: Callable[..., Any]) -> None:
        """`hook(data, path=folder)` transforms the records on their way into a checkpoint; it goes with the checkpointer."""
        self.checkpointer.register_save_hook(hook)

    def register_load_hook(self, hook: Callable[..., Any]) -> None:
        """`hook(data)` transforms the records on their way out of a checkpoint; it goes with the checkpointer."""
        self.checkpointer.register_load_hook(hook)
