"""The buffer in one process: a storage, a writer and a sampler under one lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from replay_service.arena import Arena
from replay_service.arguments import flag_of
from replay_service.buffer.assembly import batch_size_of, make_sample_unit, make_storage, make_writer
from replay_service.buffer.backends import DIRECT, hosted
from replay_service.buffer.compatibility import require_compatible
from replay_service.buffer.consumption import consuming_sampler, require_consumable, write_into_freed
from replay_service.buffer.late_writes import LateWrites
from replay_service.buffer.local_service import finished
from replay_service.buffer.membership import Membership
from replay_service.buffer.pick import Pick
from replay_service.buffer.pinning import pinned, require_cuda
from replay_service.buffer.priorities import checked_priorities
from replay_service.buffer.querying import Querying
from replay_service.buffer.record_access import RecordAccess
from replay_service.buffer.storages.base import Batch
from replay_service.buffer.time_axis import swapped
from replay_service.buffer.transforming import realign_info
from replay_service.buffer.writers.base import Writer
from replay_service.info import merge_info
from replay_service.payload import payload_bytes, views
from replay_service.structure import Leaf, build

__all__ = ["Pick", "ReplayBuffer"]


class ReplayBuffer(RecordAccess, LateWrites, Querying, Membership):
    """A composable replay buffer.

    Every call is atomic: it happens under one lock, and a call that fails changes nothing.

    Args:
        storage: where records lie; an instance, a class or a factory. None: `ListStorage(1000)`.
        sampler: how records are drawn. None: `RandomSampler()`.
        sample_unit: what each drawn record expands into (`Transition`, `Sequence`); an instance, a class or a factory. None: itself.
        writer: which slot a new record goes to. None: `RoundRobinWriter()`.
        collate_fn: makes a batch of what the storage gave; None stacks what can be stacked.
        pin_memory: samples lie in page-locked memory (needs CUDA).
        prefetch: batches drawn ahead by as many threads; see `Prefetching`.
        transform, transform_factory: what records go through on their way in and out (`append_transform`), one or a list; or what makes it.
        batch_size: default size of a sample.
        dim_extend: the dimension of a batch that is time; None: 0, or with lanes the last that names records (`storage.ndim - 1`).
        checkpointer: how the storage is written by `dumps`.
        generator: the random generator; None seeds a new one.
        consume_after_n_samples: records leave the sampleable set after so many draws, and their slots are written to first.
        shared: let other processes that inherit the buffer see its records.
        compilable, delayed_init: accepted for drop-in use.
        service_backend, service_backend_options: `"ray"` gives the owner of a buffer that lives in a Ray actor instead.
        transport, transport_options: how a hosted buffer is reached; without a meaning here.

    Raises:
        TypeError: a part is not what it should be.
        ValueError: a number is out of range, or parts that do not go together.
        RuntimeError: `pin_memory` without CUDA.
    """

    merges_info = False
    """Whether samples carry `index` and the like as entries."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A buffer, or, with another `service_backend` than `"direct"`, the owner of a hosted one."""
        backend = kwargs.pop("service_backend", DIRECT)
        if backend == DIRECT:
            return super().__new__(cls)
        return hosted(backend, cls, args, kwargs)

    def __init__(
        self,
        *,
        storage: Any = None,
        sampler: Any = None,
        sample_unit: Any = None,
        writer: Any = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Any = None,
        transform_factory: Callable[[], Any] | None = None,
        batch_size: int | None = None,
        dim_extend: int | None = None,
        checkpointer: Any = None,
        generator: torch.Generator | None = None,
        consume_after_n_samples: int | None = None,
        shared: bool = False,
        compilable: bool | None = None,
        delayed_init: bool | None = None,
        service_backend: str = DIRECT,
        service_backend_options: dict[str, Any] | None = None,
        transport: str = "auto",
        transport_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            make_storage(storage),
            consuming_sampler(sampler, consume_after_n_samples),
            self._default_writer() if writer is None else make_writer(writer),
            generator,
            dim_extend,
        )
        if checkpointer is not None:
            self._storage.checkpointer = checkpointer
        unfit = {"prefetch": prefetch, "sample_unit": sample_unit, "shared": shared}
        require_consumable(self._sampler, self._storage, self._writer, **unfit)
        self._batch_size = None if batch_size is None else batch_size_of(batch_size)
        self._collate_fn = collate_fn
        self._take_transforms(transform, transform_factory)
        self._sample_unit = make_sample_unit(sample_unit)
        require_compatible(self._writer, self._storage, self._sampler, self._sample_unit)
        self._tell_stored(self._sample_unit)
        self._arena = Arena()
        self._pins = require_cuda(pin_memory)
        self._begin_prefetch(prefetch)
        if shared:
            self.share()

    # -- writing ----------------------------------------------------------------------------------------------------

    def extend(self, data: Any, *, update_priority: bool | None = None, timeout: float | None = None) -> Tensor:
        """Appends a batch, all of it or nothing.

        Args:
            data: records with a leading dimension `[B, …]`; dtypes and row shapes as stored.
            update_priority: False keeps new records from taking the priority that their data carries (prioritized buffers of
                TensorDicts).
            timeout: accepted as by hosted buffers; nothing here waits.

        Returns:
            the slot of every record, int64 `[B]`; of more records than capacity, the last ones stay. With lanes, coordinates
            `[B, ndim]`. A writer that keeps the best records gives -1 for those that it rejects.

        Raises:
            LayoutError: a key is missing or extra, a dtype or row shape differs, or leaves disagree in their number of rows.
            PriorityError: a priority that the data carries is NaN, infinite or negative.
        """
        takes_priority = update_priority is None or flag_of("update_priority", update_priority)
        records = self._inverted(self._incoming(data))
        with self.lock:
            batch = self._storage.prepare(swapped(records, self._dim_extend))
            if len(batch) == 0:
                return self._writer.extend(batch)
            return self._write(batch, takes_priority)

    def submit_extend(self, data: Any) -> Future[Tensor]:
        """As `extend`, as a future: here it ran already, and `result()` gives or raises what came of it."""
        return finished(self.extend, data)

    def add(self, data: Any, *, timeout: float | None = None) -> int | Tensor:
        """Appends one record (no leading dimension) and returns its slot; `timeout` as for `extend`.

        Raises:
            LayoutError: as `extend`.
        """
        record = self._inverted(self._incoming(data))
        with self.lock:
            index = self._write(self._storage.prepare_one(record), True)
        return int(index[0]) if self._storage.ndim == 1 else index

    def empty(self, empty_write_count: bool = True) -> None:
        """Forgets all records; stamps given out so far become stale.

        Raises:
            RuntimeError: the writer is that of a fixed data set.
        """
        with self.lock:
            self._writer.require_writable()
            self._storage.empty()
            self.tell_emptied()
            self._writer.empty(empty_write_count)

    # -- sampling ---------------------------------------------------------------------------------------------------

    def sample(self, batch_size: int | None = None, return_info: bool = False, *, timeout: float | None = None) -> Any:
        """Draws a batch.

        Args:
            batch_size: size of this draw; None takes the buffer's.
            return_info: return `(data, info)`; info has `index` and what the sampler says (`priority_weight`, `index_generation`…).
            timeout: seconds to wait for a batch that is drawn ahead; nothing else here waits.

        Returns:
            the records `[batch_size, …]`: writable, the caller's own.

        Raises:
            EmptyBufferError: there is nothing to draw.
            ValueError, TypeError: `batch_size` is missing, not an integer or not positive.
            ReplayTimeoutError: `timeout` passed; the batch comes with a later call.
        """
        wants_info = flag_of("return_info", return_info)
        data, info = self._sampled(batch_size, timeout)
        return (data, info) if wants_info else data

    def submit_sample(self, batch_size: int | None = None) -> Future[Any]:
        """As `sample`, as a future: here it was drawn already."""
        return finished(self.sample, batch_size)

    def pick(self, batch_size: int | None = None) -> Pick:
        """Draws record numbers without reading them; the caller holds `lock` until it has read them."""
        size = self._sample_size(batch_size)
        records, info = self._sampler.sample(self._storage, size)
        if self._sample_unit is not None:
            records, info = self._sample_unit.expand(records, info, self._storage)
        coordinates = self._storage.coordinates(records)
        full: dict[str, Any] = {"index": coordinates[0] if len(coordinates) == 1 else coordinates, **info}
        self._stamp(records, full)
        return Pick(records, full)

    def dense_leaves(self) -> tuple[Leaf, ...] | None:
        """The layout in which picked records can be gathered straight into a message; None if they must go through `finish`."""
        return self._storage.leaves() if self._collate_fn is None and not self._transforms else None

    def takes_rows(self) -> bool:
        """Whether `extend` may be handed `Rows`: a columnar storage, and nothing that wants to see the data first."""
        return self._storage.columnar and not self._transforms.has_inverse

    def never_dense(self) -> bool:
        """Whether no sample can be dense tensors, as far as one can tell without drawing."""
        return False

    def finish(self, data: Any, info: dict[str, Any]) -> Any:
        """Makes a batch of the records that were read: collation, info entries, transforms, which see those, too."""
        data = self._completed(self._collated(data), info)
        merges = self.merges_info and isinstance(data, TensorDictBase)
        rows = data.shape[0] if merges else 0
        if merges:
            merge_info(data, info)
        if self._transforms:
            data = self._transforms.forward(data, None if merges else info)
            if merges:
                realign_info(data, info, rows)
        return pinned(data) if self._pins else data

    def can_sample(self, batch_size: int | None = None) -> bool:
        """Whether `sample` would find something to draw."""
        with self.lock:
            return self._sampler.can_sample(self._storage, self._sample_size(batch_size))

    def next(self) -> Any:
        """The next sample, or None if an epoch is over."""
        return None if self._epoch_is_over else self.sample()

    def __iter__(self) -> Iterator[Any]:
        """Samples until the sampler's epoch is over (for ever, with samplers that have none)."""
        while True:
            yield self.sample()
            if self._epoch_is_over:
                return

    def __repr__(self) -> str:
        parts = ", ".join(type(part).__name__ for part in (self._storage, self._sampler, self._writer))
        return f"{type(self).__name__}({parts}, len={len(self)}, batch_size={self._batch_size})"

    # -- inner ------------------------------------------------------------------------------------------------------

    def _default_writer(self) -> Writer:
        return make_writer(None)

    def _incoming(self, data: Any) -> Any:
        """Records on their way in."""
        return data

    def _completed(self, data: Any, info: dict[str, Any]) -> Any:
        """A collated batch before it gets info entries and goes through transforms."""
        return data

    def _carried_priority(self, batch: Batch) -> Tensor | None:
        """The priorities that new records bring along, one or several each."""
        return None

    def _write(self, batch: Batch, takes_priority: bool) -> Tensor:
        """Writes prepared records and tells the sampler; priorities that they carry are checked before anything is written."""
        sampler, values = self._sampler, None
        if takes_priority and sampler.keeps_priorities:
            carried = self._carried_priority(batch)
            if carried is not None:
                values = checked_priorities(carried, len(batch), sampler.reduction)
        index = write_into_freed(sampler, self._writer, batch) if sampler.consumes else self._writer.extend(batch)
        stayed = index
        if self._writer.refuses_records:
            kept = index >= 0
            stayed, values = index[kept], None if values is None else values[kept]
        if stayed.numel():
            records = self._announce(stayed)
            if values is not None:
                sampler.update_priority(records, values[values.numel() - records.numel() :], storage=self._storage)
        return index

    def _announce(self, index: Tensor) -> Tensor:
        """Tells the sampler of new records: those that stayed, in the order they were written. Returns their flat numbers."""
        storage = self._storage
        if index.ndim == 2:
            records = torch.zeros(index.shape[0], dtype=torch.int64, device="cpu")
            for coordinate, extent in zip(index.unbind(1), storage.shape, strict=True):
                records = records * extent + coordinate
        else:
            records = index
        capacity = storage.slots * storage.lanes
        if records.numel() > capacity:
            records = records[-capacity:]
        self.tell_written(records)
        return records

    def _stamp(self, records: Tensor, info: dict[str, Any]) -> None:
        """Adds the stamps of the slots of records to what is said of them."""
        if self._writer.tracks_generations:
            info["index_generation"] = self._writer.generations_of(self._storage.coordinates(records)[0])
            if "anchor_index" in info:
                anchors = info["anchor_index"]
                info["anchor_generation"] = self._writer.generations_of(anchors if anchors.ndim == 1 else anchors[:, 0])

    def _sample_size(self, batch_size: int | None) -> int:
        if batch_size is not None:
            return batch_size_of(batch_size)
        if self._batch_size is None:
            raise ValueError("batch_size must be given to sample, or to the buffer at construction")
        return self._batch_size

    def _read(self, pick: Pick) -> Any:
        leaves, spec = self._storage.leaves(), self._storage.spec()
        if leaves is None or spec is None:
            return self._storage.get(pick.records)
        rows = pick.records.numel()
        outs = views(self._arena.take(payload_bytes(leaves, rows)), leaves, rows)
        self._storage.read_into(pick.records, outs)
        return build(spec, outs, (rows,))
