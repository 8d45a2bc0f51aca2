"""The calls an owner shares with local buffers: those of every handle, and the settings that only an owner may change."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch

from clients.handle import ReplayClient
from replay_service.records import ConditionalUpdateResult, SaveReceipt, ServiceAddress, UpdateResult

__all__ = ["OwnerCalls"]


class OwnerCalls(ABC):
    """Forwards to the owner's own handle, or to the actor's closed list of owner's verbs."""

    _address: ServiceAddress

    @abstractmethod
    def _running(self) -> ReplayClient:
        """The owner's own handle."""

    @abstractmethod
    def _administer(self, verb: str, *arguments: Any, **settings: Any) -> Any:
        """Runs an owner's verb in the actor."""

    # -- the calls of a buffer --------------------------------------------------------------------------------------

    @property
    def batch_size(self) -> int | None:
        """Default size of a sample."""
        return self._address.batch_size

    @property
    def write_count(self) -> int:
        """Records written so far (asks the service)."""
        return self._running().write_count

    def __len__(self) -> int:
        return len(self._running())

    def extend(self, *args: Any, **kwargs: Any) -> Any:
        """As `ReplayClient.extend`."""
        return self._running().extend(*args, **kwargs)

    def add(self, *args: Any, **kwargs: Any) -> Any:
        """As `ReplayClient.add`."""
        return self._running().add(*args, **kwargs)

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        """As `ReplayClient.sample`."""
        return self._running().sample(*args, **kwargs)

    def next(self) -> Any:
        """The next sample."""
        return self._running().sample()

    def update_priority(self, *args: Any, **kwargs: Any) -> UpdateResult:
        """As `ReplayClient.update_priority`."""
        return self._running().update_priority(*args, **kwargs)

    def update_tensordict_priority(self, data: Any) -> UpdateResult:
        """As `ReplayClient.update_tensordict_priority`."""
        return self._running().update_tensordict_priority(data)

    def update_if_present(self, **settings: Any) -> ConditionalUpdateResult:
        """As `ReplayClient.update_if_present`."""
        return self._running().update_if_present(**settings)

    def stats(self) -> dict[str, Any]:
        """As `ReplayClient.stats`."""
        return self._running().stats()

    def __getitem__(self, index: Any) -> Any:
        return self._running()[index]

    def __setitem__(self, index: Any, data: Any) -> None:
        self._running()[index] = data

    def read_all_in_order(self, end: int | None = None) -> Any:
        """As `ReplayClient.read_all_in_order`."""
        return self._running().read_all_in_order(end)

    def write_all(self, data: Any, end: int | None = None) -> None:
        """As `ReplayClient.write_all`."""
        self._running().write_all(data, end)

    def query(self, *args: Any, **kwargs: Any) -> Any:
        """As `ReplayClient.query`."""
        return self._running().query(*args, **kwargs)

    # -- what only the owner may change -----------------------------------------------------------------------------

    def empty(self, empty_write_count: bool = True) -> None:
        """Forgets all records."""
        self._administer("empty", empty_write_count)

    def mark_update(self, index: Any) -> None:
        """Tells the sampler of records changed in place."""
        self._administer("mark_update", index)

    def end_streams(self, **keys: Any) -> None:
        """As `ReplayBufferEnsemble.end_streams`."""
        self._administer("end_streams", **keys)

    def anneal(self, step: int, total_steps: int) -> None:
        """As `OfflineToOnlineReplayBuffer.anneal`; `stats` tells the fraction."""
        self._administer("anneal", step, total_steps)

    def append_transform(self, transform: Any, *, invert: bool = False) -> None:
        """Adds a transform at the end; it runs in the actor."""
        self._administer("append_transform", transform, invert=invert)

    def insert_transform(self, index: int, transform: Any, *, invert: bool = False) -> None:
        """Adds a transform at a place; it runs in the actor."""
        self._administer("insert_transform", index, transform, invert=invert)

    def set_sampler(self, sampler: Any) -> None:
        """Replaces the sampler."""
        self._administer("set_sampler", sampler)

    def set_storage(self, storage: Any) -> None:
        """Replaces the storage."""
        self._administer("set_storage", storage)

    def set_writer(self, writer: Any) -> None:
        """Replaces the writer."""
        self._administer("set_writer", writer)

    def set_rng(self, generator: torch.Generator) -> None:
        """Makes a generator of the same state the source of the buffer's random numbers."""
        self._administer("set_rng", generator)

    def share(self, shared: bool = True) -> None:
        """As `ReplayBuffer.share`, in the actor."""
        self._administer("share", shared)

    def synchronize(self) -> None:
        """Returns when every call that came before is done."""
        self._administer("synchronize")

    def state_dict(self) -> dict[str, Any]:
        """The buffer's state, here."""
        return dict(self._administer("state_dict"))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Gives the buffer a state."""
        self._administer("load_state_dict", state_dict)

    def register_save_hook(self, hook: Callable[..., Any]) -> None:
        """Adds a hook to the storage's way into checkpoints."""
        self._administer("register_save_hook", hook)

    def register_load_hook(self, hook: Callable[..., Any]) -> None:
        """Adds a hook to the storage's way out of checkpoints."""
        self._administer("register_load_hook", hook)

    def dumps(self, path: str | os.PathLike[str], *, timeout: float | None = None) -> SaveReceipt:
        """As `ReplayClient.dumps`: the service writes on its own node, and other calls go on."""
        return self._running().dumps(path, timeout=timeout)

    def loads(self, path: str | os.PathLike[str], *, timeout: float | None = None) -> None:
        """As `ReplayClient.loads`."""
        self._running().loads(path, timeout=timeout)

    dump = dumps
    save = dumps
    load = loads
