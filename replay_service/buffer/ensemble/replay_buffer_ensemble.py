"""Several buffers, drawn from in parts; records are routed to one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from replay_service.buffer.ensemble.joining import stacked_batches
from replay_service.buffer.ensemble.member_buffers import MemberBuffers
from replay_service.buffer.ensemble.members import groups_of, later_writes, members_index
from replay_service.buffer.ensemble.routing import Routing
from replay_service.buffer.ensemble.streams import Ending, endings_of
from replay_service.buffer.index import is_single
from replay_service.buffer.replay_buffer import ReplayBuffer
from replay_service.buffer.samplers.base import Sampler
from replay_service.buffer.samplers.ensemble import SamplerEnsemble
from replay_service.buffer.storages.ensemble import StorageEnsemble
from replay_service.buffer.trajectory import as_key
from replay_service.buffer.writers.ensemble import WriterEnsemble
from replay_service.specs import Key

__all__ = ["ReplayBufferEnsemble"]


class ReplayBufferEnsemble(MemberBuffers):
    """An ensemble of buffers: samples come from some of them, drawn by `p`, `[num_buffer_sampled, batch_size / num_buffer_sampled]`.

    `rb[i]` is buffer `i`. `rb[i].extend` writes to it; `extend` writes to several at once, if there is a route. `index` of a sample is a
    TensorDict of `buffer_ids` and `index`; `rb[sample["index"]]` reads these records again. `len(rb)` is the number of records of all.

    Args:
        *rbs: the buffers, or factories of them.
        storages, samplers, writers: `StorageEnsemble`, `SamplerEnsemble` and `WriterEnsemble`, of which the buffers are made instead;
            `transforms` of the storages become theirs.
        transform: what batches go through after the transforms of the buffers, and routed records before them.
        batch_size: default size of a sample.
        collate_fn: makes a batch of the parts; None stacks them.
        collate_fns: what makes a part of the records of each buffer, with `storages`; buffers that are given have their own.
        p: how likely each buffer is, in any unit; `"sampleable"`: in proportion to the records that can be drawn; None: all alike, and
            those that hold nothing to draw are passed over.
        sample_from_all: one part from every buffer instead.
        num_buffer_sampled: parts of a batch, which must be divisible by it; None for as many as there are buffers.
        routing_key: the entry that tells the number of the buffer of each record that is written here.
        routing_dim: the dimension of a batch whose places are the buffers, instead.
        generator: the random generator, of the buffers, too; None seeds a new one for the ensemble, and buffers keep theirs.
        shared: let other processes that inherit the ensemble see the records of its buffers.
        **kwargs: as `ReplayBuffer`, as far as it does not belong to the buffers.

    Raises:
        TypeError: no buffers, or not one of the two ways to give them.
        ValueError: a number is out of range; buffers that share a storage or differ in `ndim`; a route to buffers with lanes.
    """

    def __init__(
        self,
        *rbs: Any,
        storages: StorageEnsemble | None = None,
        samplers: SamplerEnsemble | None = None,
        writers: WriterEnsemble | None = None,
        transform: Any = None,
        batch_size: int | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        collate_fns: Sequence[Callable[[Any], Any] | None] | None = None,
        p: Any = None,
        sample_from_all: bool = False,
        num_buffer_sampled: int | None = None,
        routing_key: str | Key | None = None,
        routing_dim: int | None = None,
        generator: torch.Generator | None = None,
        shared: bool = False,
        **kwargs: Any,
    ) -> None:
        self._routing = Routing(routing_key, routing_dim)
        given = (storages, samplers, writers)
        if rbs:
            if any(part is not None for part in given) or collate_fns is not None:
                raise TypeError("storages, samplers, writers and collate_fns must be left out where buffers are given")
            members = [_made(place, rb) for place, rb in enumerate(rbs)]
            chooser = SamplerEnsemble(
                *(member.sampler for member in members),
                p=p,
                sample_from_all=sample_from_all,
                num_buffer_sampled=num_buffer_sampled,
            )
        else:
            if p is not None or sample_from_all or num_buffer_sampled is not None:
                raise TypeError(
                    "p, sample_from_all and num_buffer_sampled must be given to samplers where there is one"
                )
            members, chooser = _of_parts(*given, collate_fns)
        super().__init__(
            members,
            chooser,
            stacked_batches,
            True,
            [f"rbs[{place}]" for place in range(len(members))],
            transform=transform,
            batch_size=batch_size,
            collate_fn=collate_fn,
            generator=generator,
            shared=shared,
            **kwargs,
        )
        if self._routing.is_set and self._storage.ndim != 1:
            raise ValueError(
                f"rbs (ndim {self._storage.ndim}) must have one dimension for records to be routed to them"
            )

    # -- writing ----------------------------------------------------------------------------------------------------

    def extend(self, data: Any, *, update_priority: bool | None = None, timeout: float | None = None) -> Any:
        """Appends every record to the buffer that its route names, all of them or none.

        Args:
            data: TensorDict, tensorclass or dict of tensors, `[…]`; its records are taken in row-major order.
            update_priority: as for one buffer.
            timeout: accepted as by hosted buffers; nothing here waits.

        Returns:
            TensorDict `[n]` of `buffer_ids` and `index`, the slot of every record in its buffer, and `index_generation` if all buffers
            track them.

        Raises:
            RuntimeError: there is no route, or a buffer is a fixed data set.
            LayoutError, ValueError, TypeError: a route that is none, or records that do not fit. Nothing was written, to no buffer.
        """
        flat, ids = self._routing.route(self._inverted(data), len(self.members))
        parts = [(member, rows, self.members[member].intake(flat[rows])) for member, rows in groups_of(ids)]
        slots = torch.full(ids.shape, -1, dtype=torch.int64, device="cpu")
        stamps = torch.full_like(slots, -1)
        with self.lock:
            self._parts_of_members()
            # All of them are validated before the first is written.
            writes = [(m, rows, self.members[m].writing(part, update_priority)) for m, rows, part in parts]
            for member, rows, write in writes:
                slots[rows] = write()
                if self._writer.tracks_generations:
                    stamps[rows] = self._stamps_of(member, slots[rows])
        if self._writer.tracks_generations:
            return members_index(ids, slots, index_generation=stamps)
        return members_index(ids, slots)

    def add(self, data: Any, *, timeout: float | None = None) -> Any:
        """Appends one record (no leading dimension) to the buffer that `routing_key` names; returns `buffer_ids`, `index`… of it.

        Raises:
            RuntimeError: there is no `routing_key`.
            LayoutError, ValueError, TypeError: as `extend`.
        """
        if self._routing.dim is not None:
            raise RuntimeError("add must find a routing_key; with routing_dim records come in batches: use extend")
        one: Any = TensorDict(data) if isinstance(data, Mapping) and not isinstance(data, TensorDictBase) else data
        return self.extend(one.unsqueeze(0))[0]

    def _stamps_of(self, member: int, slots: Tensor) -> Tensor:
        """The stamps that records got when they were written to `slots` int64 `[n]`, one after the other; -1 for none."""
        stamps: Tensor = self.members[member].writer.generations_of(slots)
        return torch.where(slots < 0, -1, stamps - later_writes(slots))

    # -- reading ----------------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        """A buffer, an ensemble of some of them, or records.

        Args:
            index: an integer for one buffer; a slice, or a list or array of integers, for an ensemble of these; a TensorDict or dict of
                `buffer_ids` and `index`, as samples carry it, for its records; a tuple for `rb[first][rest]`, which of an ensemble is the
                records `rest` of each of its buffers, stacked.

        Raises:
            IndexError: a buffer or a record that is not there.
            TypeError: something else.
        """
        if isinstance(index, TensorDictBase | Mapping):
            return self._transforms.forward(self._records(index))
        if isinstance(index, tuple) and index and not isinstance(index[0], str):
            chosen = self[index[0]]
            rest = index[1] if len(index) == 2 else index[1:]
            if len(index) == 1:
                return chosen
            return chosen.of_each(rest) if isinstance(chosen, ReplayBufferEnsemble) else chosen[rest]
        if isinstance(index, str | tuple) or index is None or isinstance(index, float):
            raise TypeError(
                f"index ({index!r}) must name buffers by integers, or records as samples do; one entry is rb[i][{index!r}]"
            )
        if is_single(index):
            return self.members[_place(int(index), len(self.members))]
        return self._some(_places(index, len(self.members)))

    def of_each(self, index: Any) -> Any:
        """The records `index` of every buffer, made one batch."""
        with self.lock:
            batches = [member[index] for member in self.members]
        return self._transforms.forward(self._joined(batches, range(len(self.members))))

    def __setitem__(self, index: Any, data: Any) -> None:
        self._refuse("[index] = data")

    def _some(self, places: list[int]) -> ReplayBufferEnsemble:
        chooser = self._sampler
        if not isinstance(chooser, SamplerEnsemble):
            raise RuntimeError(f"sampler ({type(chooser).__name__}) must be a SamplerEnsemble")
        return ReplayBufferEnsemble(
            *(self.members[place] for place in places),
            transform=list(self._transforms),
            batch_size=self._batch_size,
            collate_fn=self._collate_fn,
            p=chooser.p[places] if isinstance(chooser.p, Tensor) else chooser.p,
            sample_from_all=chooser.sample_from_all,
            num_buffer_sampled=None if chooser.num_buffer_sampled == len(chooser) else chooser.num_buffer_sampled,
        )

    # -- streams ----------------------------------------------------------------------------------------------------

    def end_streams(
        self,
        *,
        end_key: str | Key = ("next", "done"),
        terminated_key: str | Key | None = ("next", "terminated"),
        truncated_key: str | Key | None = ("next", "truncated"),
    ) -> None:
        """Lets the newest step of every lane of every buffer be the last of its episode: collectors were stopped or started anew.

        A step that is no end yet gets `end_key`, and `truncated_key` where records have that entry and are not terminated. Write counts and
        stamps stay. Buffers without a step and fixed data sets are passed over. Samplers that follow trajectory ids look at no flags: let
        restarted collectors use new ids.

        Raises:
            ValueError: keys that are the same, or a buffer that is not written step after step.
            KeyError, LayoutError, TypeError: records without columns, or without flags under `end_key`. Nothing was changed.
        """
        keys = [
            None if key is None else as_key(name, key)
            for name, key in (
                ("end_key", end_key),
                ("terminated_key", terminated_key),
                ("truncated_key", truncated_key),
            )
        ]
        named = [key for key in keys if key is not None]
        if len(set(named)) < len(named):
            raise ValueError(f"end_key, terminated_key and truncated_key must differ; got {named}")
        end = as_key("end_key", end_key)
        with self.lock:
            endings: list[Ending | None] = [
                endings_of(member, place, end, keys[1], keys[2]) for place, member in enumerate(self.members)
            ]
            for member, ending in zip(self.members, endings, strict=True):
                if ending is not None:
                    ending.write(member)
            self._outdate()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.members))}, batch_size={self._batch_size})"


def _made(place: int, given: Any) -> ReplayBuffer:
    made = given if isinstance(given, ReplayBuffer) else given() if callable(given) else given
    if not isinstance(made, ReplayBuffer):
        raise TypeError(f"rbs[{place}] must be a buffer of this process or a factory of one; got {type(made).__name__}")
    return made


def _of_parts(
    storages: Any, samplers: Any, writers: Any, collate_fns: Sequence[Callable[[Any], Any] | None] | None
) -> tuple[list[ReplayBuffer], SamplerEnsemble]:
    """Buffers of the parts with the same number."""
    kinds = (("storages", storages, StorageEnsemble), ("samplers", samplers, SamplerEnsemble))
    for name, part, kind in (*kinds, ("writers", writers, WriterEnsemble)):
        if not isinstance(part, kind):
            raise TypeError(f"{name} must be a {kind.__name__} where no buffers are given; got {type(part).__name__}")
    count = len(storages.storages)
    collates = [None] * count if collate_fns is None else list(collate_fns)
    for name, size in (("samplers", len(samplers)), ("writers", len(writers)), ("collate_fns", len(collates))):
        if size != count:
            raise ValueError(f"{name} ({size}) must be one per storage; got {count} storages")
    transforms = storages.transforms or [None] * count
    parts: list[tuple[Any, Sampler, Any, Any, Any]] = list(
        zip(storages.storages, samplers.samplers, writers.writers, transforms, collates, strict=True)
    )
    members = [
        ReplayBuffer(storage=storage, sampler=sampler, writer=writer, transform=transform, collate_fn=collate)
        for storage, sampler, writer, transform, collate in parts
    ]
    return members, samplers


def _place(index: int, members: int) -> int:
    if not -members <= index < members:
        raise IndexError(f"index ({index}) must be in [-{members}, {members}), the number of a buffer")
    return index % members


def _places(index: Any, members: int) -> list[int]:
    if isinstance(index, slice) or index is Ellipsis:
        return list(range(members))[slice(None) if index is Ellipsis else index]
    array = np.asarray(index)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise TypeError(f"index ({type(index).__name__}) must be integers in one dimension to name buffers")
    return [_place(int(place), members) for place in array]
