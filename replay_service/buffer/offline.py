"""Recorded and new steps in one buffer: every batch has its part of both."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from tensordict import is_tensor_collection
from torch import Tensor

from replay_service.buffer.assembly import make_storage
from replay_service.buffer.ensemble.joining import concatenated
from replay_service.buffer.ensemble.member_buffers import MemberBuffers
from replay_service.buffer.ensemble.members import MemberIndex, member_index, members_index
from replay_service.buffer.index import Index
from replay_service.buffer.offline_files.opening import open_offline_file
from replay_service.buffer.replay_buffer import ReplayBuffer
from replay_service.buffer.samplers.split import SplitSampler
from replay_service.buffer.storages.lazy_tensor import LazyTensorStorage
from replay_service.buffer.storages.tensor import TensorStorage
from replay_service.buffer.tensordict_buffer import TensorDictReplayBuffer
from replay_service.buffer.writers.immutable import ImmutableDatasetWriter

__all__ = ["OfflineToOnlineReplayBuffer"]

OFFLINE, ONLINE = 0, 1


class OfflineToOnlineReplayBuffer(MemberBuffers):
    """A fixed data set and a buffer that grows, drawn from together.

    A batch `[batch_size]` has `round(offline_fraction * batch_size)` rows of the data set first, then rows that `extend` wrote; as long as
    nothing was written, it has only the former. `index` of a batch is a TensorDict of `buffer_ids` (0 for the data set, 1 for the other)
    and `index`; slots by themselves, as `extend` returns them, are those of the growing buffer. `len` counts both.

    Args:
        offline_dataset: a buffer (or a factory of one), which is left as it is; steps as a TensorDict, whose memory is used; or the path of
            a file (`open_offline_file`), which is read.
        online_storage: where new records lie; an instance, a class or a factory.
        online_capacity: a `LazyTensorStorage` of so many records, instead. One of the two.
        offline_fraction: the part of the data set in a batch, between 0 and 1.
        batch_size: default size of a sample.
        transform: what batches go through; the data set's own come before.
        generator, prefetch, pin_memory, collate_fn, shared: as `ReplayBuffer`.
        compilable, delayed_init, service_backend, service_backend_options, transport, transport_options: as `ReplayBuffer`.
        **dataset_kwargs: with a path, arguments of `open_offline_file`.

    Raises:
        TypeError: no data set.
        ValueError: both or neither of `online_storage` and `online_capacity`, a fraction out of range, or `dataset_kwargs` without a path.
        FileNotFoundError, LayoutError, ModuleNotFoundError: as `open_offline_file`.
    """

    def __init__(
        self,
        offline_dataset: Any,
        *,
        online_storage: Any = None,
        online_capacity: int | None = None,
        offline_fraction: float = 0.5,
        batch_size: int | None = None,
        transform: Any = None,
        generator: torch.Generator | None = None,
        prefetch: int | None = None,
        pin_memory: bool = False,
        collate_fn: Callable[[Any], Any] | None = None,
        shared: bool = False,
        compilable: bool | None = None,
        delayed_init: bool | None = None,
        service_backend: str = "direct",
        service_backend_options: dict[str, Any] | None = None,
        transport: str = "auto",
        transport_options: dict[str, Any] | None = None,
        **dataset_kwargs: Any,
    ) -> None:
        if (online_storage is None) == (online_capacity is None):
            raise ValueError(
                f"exactly one of online_storage and online_capacity must be given; got {online_storage!r} and {online_capacity!r}"
            )
        if not 0.0 < offline_fraction < 1.0:
            raise ValueError(f"offline_fraction ({offline_fraction}) must be between 0 and 1")
        storage = make_storage(online_storage) if online_capacity is None else LazyTensorStorage(online_capacity)
        offline = _data_set(offline_dataset, dataset_kwargs)
        spec = offline.storage.spec()
        holds_tensordicts = offline.merges_info or (isinstance(spec, tuple) and spec[0] == "td")
        online: ReplayBuffer = (TensorDictReplayBuffer if holds_tensordicts else ReplayBuffer)(storage=storage)
        self._first_fraction = float(offline_fraction)
        self._split = SplitSampler(offline.sampler, online.sampler, offline_fraction)
        super().__init__(
            (offline, online),
            self._split,
            concatenated,
            False,
            ("offline_buffer", "online_buffer"),
            batch_size=batch_size,
            transform=transform,
            generator=generator,
            prefetch=prefetch,
            pin_memory=pin_memory,
            collate_fn=collate_fn,
            shared=shared,
        )

    @property
    def offline_buffer(self) -> Any:
        """The data set."""
        return self.members[OFFLINE]

    @property
    def online_buffer(self) -> Any:
        """The buffer that `extend` writes to."""
        return self.members[ONLINE]

    @property
    def offline_fraction(self) -> float:
        """The part of the data set in a batch, as it is now."""
        return self._split.fraction

    def anneal(self, step: int, total_steps: int) -> None:
        """Sets `offline_fraction` for step `step` of `total_steps`: it goes down evenly from the one at construction to 0.

        From step `total_steps` on batches have rows of the data set only as long as there are no others.

        Raises:
            ValueError: `step` is negative, or `total_steps` is not positive.
        """
        if step < 0 or total_steps <= 0:
            raise ValueError(f"step ({step}) must not be negative, and total_steps ({total_steps}) must be positive")
        with self.lock:
            self._split.fraction = self._first_fraction * max(0.0, 1.0 - step / total_steps)
            self._drop_ahead()

    def stats(self, timeout: float | None = None) -> dict[str, Any]:
        """As `ReplayBuffer.stats` of both buffers together, and `num_buffers`, `offline_fraction`, `offline_size`, `online_size`."""
        sizes = {"offline_size": len(self.offline_buffer), "online_size": len(self.online_buffer)}
        return {**super().stats(), "offline_fraction": self.offline_fraction, **sizes}

    # -- writing ----------------------------------------------------------------------------------------------------

    def extend(self, data: Any, *, update_priority: bool | None = None, timeout: float | None = None) -> Tensor:
        """Appends a batch to the growing buffer; as `ReplayBuffer.extend`, and returns slots of that buffer."""
        slots: Tensor = self.online_buffer.extend(self._inverted(data), update_priority=update_priority)
        return slots

    def add(self, data: Any, *, timeout: float | None = None) -> int | Tensor:
        """Appends one record to the growing buffer and returns its slot there."""
        slot: int | Tensor = self.online_buffer.add(self._inverted(data))
        return slot

    def empty(self, empty_write_count: bool = True) -> None:
        """Forgets the records of the growing buffer; the data set stays."""
        with self.lock:
            self.online_buffer.empty(empty_write_count)
            self._drop_ahead()

    # -- records by name --------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        """Records: of both buffers by a TensorDict or dict of `buffer_ids` and `index`, of the growing one by anything else."""
        if not _names_members(index):
            return self.online_buffer[index]
        with self.lock:
            return self._transforms.forward(self._records(index))

    def __setitem__(self, index: Any, data: Any) -> None:
        """Overwrites records of the growing buffer in place."""
        if _names_members(index):
            self._refuse("[index] = data")
        self.online_buffer[index] = self._inverted(data)

    def _named(self, index: Any) -> MemberIndex:
        if _names_members(index):
            return super()._named(index)
        local = (
            torch.stack(index, 1)
            if isinstance(index, tuple)
            else torch.as_tensor(index, device="cpu").detach().to("cpu")
        )
        rows = local.shape[:1] if self._storage.ndim > 1 else local.shape
        return member_index(members_index(torch.full(rows, ONLINE, device="cpu"), local), len(self.members))

    def _take_own_state(self, state_dict: dict[str, Any]) -> None:
        super()._take_own_state(state_dict)
        self._split.fraction = float(state_dict["sampler"]["fraction"])

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(offline={len(self.offline_buffer)}, online={len(self.online_buffer)}, "
            f"offline_fraction={self.offline_fraction:.3f}, batch_size={self._batch_size})"
        )


def _data_set(given: Any, settings: dict[str, Any]) -> ReplayBuffer:
    """The buffer that holds the data set."""
    if isinstance(given, str | os.PathLike):
        with open_offline_file(given, **settings) as file:
            return _fixed(file[:])
    if settings:
        raise ValueError(f"dataset_kwargs ({sorted(settings)}) must come with the path of a file")
    if is_tensor_collection(given):
        return _fixed(given)
    made = given() if callable(given) and not isinstance(given, ReplayBuffer) else given
    if not isinstance(made, ReplayBuffer):
        raise TypeError(
            f"offline_dataset ({type(made).__name__}) must be a buffer of this process, a TensorDict or the path of a file"
        )
    return made


def _fixed(steps: Any) -> ReplayBuffer:
    return TensorDictReplayBuffer(storage=TensorStorage(steps), writer=ImmutableDatasetWriter())


def _names_members(index: Index) -> bool:
    return is_tensor_collection(index) or isinstance(index, dict)
