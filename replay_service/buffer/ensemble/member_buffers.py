"""Several buffers that are drawn from, updated and saved as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from replay_service.buffer.ensemble.gathering import Gathered, gathered
from replay_service.buffer.ensemble.joining import Join, concatenated, joined_values, unify_entries
from replay_service.buffer.ensemble.member_states import MemberStates
from replay_service.buffer.ensemble.member_updates import MemberUpdates
from replay_service.buffer.ensemble.members import INDEX, members_index
from replay_service.buffer.pick import Pick
from replay_service.buffer.pinning import pinned
from replay_service.buffer.replay_buffer import ReplayBuffer
from replay_service.buffer.samplers.ensemble import SamplerEnsemble
from replay_service.buffer.storages.ensemble import StorageEnsemble
from replay_service.buffer.transforming import realign_info
from replay_service.buffer.writers.ensemble import WriterEnsemble
from replay_service.info import merge_info

__all__ = ["MemberBuffers"]

PARTS = "parts"
WEIGHT = "priority_weight"


class MemberBuffers(MemberUpdates, MemberStates, ReplayBuffer):
    """Base of buffers that are made of several.

    A batch consists of parts, each drawn, read, collated and transformed by one of the buffers. `index` of a batch is a TensorDict of
    `buffer_ids` and `index`, the slot in that buffer; with it and with `index_generation`, priorities and patches reach the right one.
    `priority_weight` is 1 in parts of buffers without priorities, if others have some. What only some buffers say of their parts is left
    out.

    A buffer can be used by itself, too; what is written to it is drawn here. Its storage must stay the one it has.

    Args:
        members: the buffers.
        sampler: which of them a batch is drawn from.
        join: makes one batch of the parts.
        stacks: whether it stacks them, `[parts, rows]`, or concatenates, `[rows]`.
        names: what the buffers are called in messages.
        **settings: as `ReplayBuffer`.

    Raises:
        TypeError: a member is no buffer, or itself made of several.
        ValueError: two of them share a storage, or a setting that belongs to the members.
    """

    merges_info = True

    def __init__(
        self,
        members: Sequence[ReplayBuffer],
        sampler: SamplerEnsemble,
        join: Join,
        stacks: bool,
        names: Sequence[str],
        **settings: Any,
    ) -> None:
        self.members = tuple(members)
        self._names = tuple(names)
        self._join = join
        self._stacks = stacks
        for setting in ("sample_unit", "consume_after_n_samples", "dim_extend"):
            if settings.get(setting) is not None:
                raise ValueError(
                    f"{setting} ({settings[setting]!r}) must be given to the buffers that this one is made of"
                )
        for name, member in zip(names, members, strict=True):
            if isinstance(member, MemberBuffers) or not isinstance(member, ReplayBuffer):
                raise TypeError(f"{name} must be a buffer of this process, of its own; got {type(member).__name__}")
        generator, shared = settings.pop("generator", None), settings.pop("shared", False)
        self._seeds_members = generator is not None  # a generator made here is not forced on those that have their own
        super().__init__(
            storage=StorageEnsemble(*(member.storage for member in members)),
            sampler=sampler,
            writer=WriterEnsemble(*(member.writer for member in members)),
            generator=generator,
            **settings,
        )
        self._seeds_members = True
        if shared:
            self.share()

    # -- drawing ----------------------------------------------------------------------------------------------------

    def pick(self, batch_size: int | None = None) -> Pick:
        """Draws record numbers without reading them; the caller holds `lock` until it has read them."""
        size = self._sample_size(batch_size)
        storage, sampler = self._parts_of_members()
        parts, numbers = [], []
        for member, rows in sampler.allot(storage, size):
            pick = self._whole(member, rows)
            parts.append({"buffer": member, "records": pick.records, "info": pick.info})
            numbers.append(storage.joined(member, pick.records))
        return Pick(torch.cat(numbers), {PARTS: parts})

    def _whole(self, member: int, rows: int) -> Pick:
        """A draw of `rows` records from one buffer: where an epoch ends before, the next one gives the rest."""
        buffer = self.members[member]
        pick: Pick = buffer.pick(rows)
        while pick.records.numel() < rows and not (buffer.sampler.needs_order or buffer.sampler.consumes):
            pick = pick.followed_by(buffer.pick(rows - pick.records.numel()))
        return pick

    def finish(self, data: Any, info: dict[str, Any]) -> Any:
        """Makes a batch of the parts that were read, and of what is said of each what is said of all."""
        parts = info.pop(PARTS)
        drawn = [part["buffer"] for part in parts]
        infos = [dict(part["info"]) for part in parts]
        if isinstance(data, Gathered):
            batch = data.batch
        else:
            batches = [self._finished(*each) for each in zip(drawn, data, infos, strict=True)]
            unify_entries(batches, infos)
            batch = self._joined(batches, drawn)
        said = self._joined_info(drawn, infos)
        info.update(said)
        if isinstance(batch, TensorDictBase):
            # What the buffers have merged into parts of their own is there already.
            for name in said if isinstance(data, Gathered) else (INDEX,) if INDEX in said else ():
                self._set_entry(batch, name, said[name])
        if self._transforms:
            batch = self._transformed(batch, info)
        return pinned(batch) if self._pins else batch

    def _set_entry(self, batch: TensorDictBase, name: Any, value: Any) -> None:
        """Puts what is said of the rows of a batch into it, if it has still the shape that it says it of."""
        dims = 2 if self._stacks else 1
        if batch.shape[:dims] == value.shape[:dims]:
            batch.set(name, value)

    def _finished(self, member: int, data: Any, info: dict[Any, Any]) -> Any:
        """One part as its buffer would give it, with what is said of it among its entries."""
        buffer = self.members[member]
        batch = buffer.finish(data, info)
        if (
            self._sampler.keeps_priorities
            and not buffer.sampler.keeps_priorities
            and isinstance(info.get(INDEX), Tensor)
        ):
            info[WEIGHT] = torch.ones(info[INDEX].shape[0], device="cpu")
            if isinstance(batch, TensorDictBase) and batch.shape[:1] == info[WEIGHT].shape:
                batch.set(WEIGHT, info[WEIGHT])
        if isinstance(batch, TensorDictBase) and batch.ndim and not buffer.merges_info:
            merge_info(batch, info)
        return batch

    def _joined(self, batches: Sequence[Any], drawn: Sequence[int]) -> Any:
        if self._collate_fn is not None:
            return self._collate_fn(batches)
        return self._join(batches, [self._names[member] for member in drawn])

    def _joined_info(self, drawn: list[int], infos: list[dict[Any, Any]]) -> dict[Any, Any]:
        """What the buffers say of all parts, in the shape of the batch."""
        common = [name for name in infos[0] if all(name in info for info in infos)]
        rows = [_rows_of(info) for info in infos]
        joined = {name: joined_values([info[name] for info in infos], rows, self._stacks) for name in common}
        said: dict[Any, Any] = {name: value for name, value in joined.items() if value is not None}
        if INDEX in said:
            # Not by torch's repeat_interleave: it wakes all threads for a few rows.
            ids = torch.from_numpy(np.repeat(np.array(drawn, np.int64), rows))
            said[INDEX] = members_index(ids.view(len(drawn), -1) if self._stacks else ids, said[INDEX])
        return said

    def _transformed(self, batch: Any, info: dict[Any, Any]) -> Any:
        rows = batch.shape[0] if isinstance(batch, TensorDictBase) and batch.ndim else -1
        batch = self._transforms.forward(batch)
        realign_info(batch, info, rows)
        if isinstance(batch, TensorDictBase) and INDEX in info:
            index = batch.get(INDEX, None)
            if index is not None:
                info[INDEX] = index
            elif batch.ndim and batch.shape[0] == rows:
                batch.set(INDEX, info[INDEX])
            else:
                del info[INDEX]
        return batch

    def _read(self, pick: Pick) -> Any:
        draws = [(self.members[part["buffer"]], Pick(part["records"], part["info"])) for part in pick.info[PARTS]]
        whole = None if self._collate_fn is not None else gathered(draws, self._arena, self._stacks)
        return [buffer.read(drawn) for buffer, drawn in draws] if whole is None else whole

    def _stamp(self, records: Tensor, info: dict[str, Any]) -> None:
        for part in info.get(PARTS, ()):
            self.members[part["buffer"]].restamp(Pick(part["records"], part["info"]))

    def can_sample(self, batch_size: int | None = None) -> bool:
        """Whether `sample` would find something to draw."""
        with self.lock:
            storage, sampler = self._parts_of_members()
            return sampler.can_sample(storage, self._sample_size(batch_size))

    def _records(self, index: Any) -> Any:
        """Records by their names, in the shape of `index["buffer_ids"]`."""
        with self.lock:
            named = self._named(index)
            self._storage.flat_slots(index)
            groups = named.groups()
            batches = [self.members[member][named.local[rows]] for member, rows in groups]
        batch = concatenated(batches, [self._names[member] for member, _ in groups]) if groups else TensorDict({}, [0])
        back = (
            torch.argsort(torch.cat([rows for _, rows in groups]))
            if groups
            else torch.zeros(0, dtype=torch.int64, device="cpu")
        )
        ordered = [batch[place] for place in back.tolist()] if isinstance(batch, list) else batch[back]
        return ordered.reshape(named.shape) if isinstance(ordered, TensorDictBase) else ordered

    def dense_leaves(self) -> None:
        """None: batches go through `finish`."""
        return

    def takes_rows(self) -> bool:
        """False: records are looked at to find their buffer."""
        return False


def _rows_of(info: dict[Any, Any]) -> int:
    """Rows of a part, as far as what is said of it tells."""
    index = info.get(INDEX)
    if isinstance(index, tuple):
        return int(index[0].shape[0])
    return int(index.shape[0]) if isinstance(index, Tensor) and index.ndim else -1
