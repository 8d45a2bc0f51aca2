"""The owner of a hosted episodic buffer: the calls of a handle, and those that only an owner may make."""

from __future__ import annotations

import os
from typing import Any

from clients.episodic_handle import EpisodicClient
from replay_service.episodic.batch import Batch
from replay_service.episodic.facts import StepFacts
from replay_service.records import SaveReceipt
from replay_service.service.ownership import Ownership

__all__ = ["RayEpisodicBuffer"]


class RayEpisodicBuffer(Ownership):
    """An episodic buffer in a Ray actor, seen by whoever started it.

    It has the calls of a local buffer, which go through a handle of its own (`client()` gives more of them), and the end:
    `shutdown`, also by leaving a `with` block.

    Args:
        *args, **kwargs: arguments of the buffer's class.
        replay_buffer_cls: the buffer's class.
        kwargs: arguments of the buffer's class, and what `RayReplayBuffer` takes of Ray, names and transports.

    Raises:
        ValueError: an unknown option, or a name that is taken.
        ServiceUnavailableError: Ray cannot be reached, or the actor did not start.
    """

    returns_in_sample = True

    def client(self) -> EpisodicClient:
        """A new handle: picklable, for any process that is joined to the same Ray."""
        handle: EpisodicClient = super().client()
        return handle

    def _handle(self) -> EpisodicClient:
        return EpisodicClient(self._address, StepFacts(**self._known["steps"]))

    # -- the calls of a handle --------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._running())

    def __bool__(self) -> bool:
        """True: the service is there, however many steps it holds."""
        return True

    def __getitem__(self, index: Any) -> Batch:
        steps: Batch = self._running()[index]
        return steps

    def add(self, *args: Any, **kwargs: Any) -> Any:
        """As `EpisodicClient.add`."""
        return self._running().add(*args, **kwargs)

    def submit_add(self, *args: Any, **kwargs: Any) -> Any:
        """As `EpisodicClient.submit_add`."""
        return self._running().submit_add(*args, **kwargs)

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        """As `EpisodicClient.sample`."""
        return self._running().sample(*args, **kwargs)

    def submit_sample(self, *args: Any, **kwargs: Any) -> Any:
        """As `EpisodicClient.submit_sample`."""
        return self._running().submit_sample(*args, **kwargs)

    def prefetch(self, *args: Any, **kwargs: Any) -> Any:
        """As `EpisodicClient.prefetch`."""
        return self._running().prefetch(*args, **kwargs)

    def sample_indices(self, *args: Any, **kwargs: Any) -> Any:
        """As `EpisodicClient.sample_indices`."""
        return self._running().sample_indices(*args, **kwargs)

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """As `EpisodicClient.get`."""
        return self._running().get(*args, **kwargs)

    def column(self, *args: Any, **kwargs: Any) -> Any:
        """As `EpisodicClient.column`."""
        return self._running().column(*args, **kwargs)

    def set_array_at_key(self, *args: Any, **kwargs: Any) -> None:
        """As `EpisodicClient.set_array_at_key`."""
        self._running().set_array_at_key(*args, **kwargs)

    def prev(self, *args: Any, **kwargs: Any) -> Any:
        """As `EpisodicClient.prev`."""
        return self._running().prev(*args, **kwargs)

    def next(self, *args: Any, **kwargs: Any) -> Any:
        """As `EpisodicClient.next`."""
        return self._running().next(*args, **kwargs)

    def unfinished_index(self, *args: Any, **kwargs: Any) -> Any:
        """As `EpisodicClient.unfinished_index`."""
        return self._running().unfinished_index(*args, **kwargs)

    def hasnull(self, *args: Any, **kwargs: Any) -> bool:
        """As `EpisodicClient.hasnull`."""
        return bool(self._running().hasnull(*args, **kwargs))

    def episodic_return(self, *args: Any, **kwargs: Any) -> Any:
        """As `EpisodicClient.episodic_return`."""
        return self._running().episodic_return(*args, **kwargs)

    def reset(self, *args: Any, **kwargs: Any) -> None:
        """As `EpisodicClient.reset`."""
        self._running().reset(*args, **kwargs)

    def end_episodes(self, *args: Any, **kwargs: Any) -> None:
        """As `EpisodicClient.end_episodes`."""
        self._running().end_episodes(*args, **kwargs)

    @property
    def update_weight(self) -> Any:
        """As `EpisodicClient.update_weight`; `AttributeError` for a buffer without priorities."""
        return self._running().update_weight

    @property
    def get_weight(self) -> Any:
        """As `EpisodicClient.get_weight`; `AttributeError` for a buffer without priorities."""
        return self._running().get_weight

    @property
    def set_beta(self) -> Any:
        """As `EpisodicClient.set_beta`; `AttributeError` for a buffer without priorities."""
        return self._running().set_beta

    def dumps(self, path: str | os.PathLike[str], *, timeout: float | None = None) -> SaveReceipt:
        """As `EpisodicClient.dumps`: the service writes on its own node, and other calls go on."""
        receipt: SaveReceipt = self._running().dumps(path, timeout=timeout)
        return receipt

    def loads(self, path: str | os.PathLike[str], *, timeout: float | None = None) -> None:
        """As `EpisodicClient.loads`."""
        self._running().loads(path, timeout=timeout)

    dump = dumps
    save = dumps
    load = loads

    @property
    def maxsize(self) -> int:
        """Slots of all rings."""
        return int(self._running().maxsize)

    @property
    def buffer_num(self) -> int:
        """Rings that steps can be added to."""
        return int(self._running().buffer_num)

    @property
    def stack_num(self) -> int:
        """Steps that are stacked when read."""
        return int(self._running().stack_num)

    @property
    def write_count(self) -> int:
        """Steps added so far (asks the service)."""
        return int(self._running().write_count)

    def stats(self, timeout: float | None = None) -> dict[str, Any]:
        """As `EpisodicClient.stats`."""
        return dict(self._running().stats(timeout))

    # -- what only the owner may do ---------------------------------------------------------------------------------

    def dropnull(self) -> None:
        """As `ReplayBuffer.dropnull`, in the actor."""
        self._administer("dropnull")

    def set_batch(self, batch: Batch) -> None:
        """As `ReplayBuffer.set_batch`, in the actor."""
        self._administer("set_batch", batch)

    def save_hdf5(self, path: str | os.PathLike[str], compression: str | None = None) -> None:
        """Writes the file on the service's node."""
        self._administer("save_hdf5", str(path), compression)

    def state_dict(self) -> dict[str, Any]:
        """The buffer's state, here."""
        return dict(self._administer("state_dict"))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Gives the buffer a state."""
        self._administer("load_state_dict", state_dict)
