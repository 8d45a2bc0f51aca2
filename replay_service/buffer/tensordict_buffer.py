"""The buffer of TensorDicts: samples carry where they came from."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch import Tensor

from replay_service.buffer.assembly import make_writer
from replay_service.buffer.replay_buffer import ReplayBuffer
from replay_service.buffer.storages.base import Batch
from replay_service.buffer.writers.base import Writer
from replay_service.buffer.writers.round_robin import TensorDictRoundRobinWriter
from replay_service.errors import LayoutError
from replay_service.info import carried_priority, priorities_of
from replay_service.specs import Key
from replay_service.structure import Rows

__all__ = ["TensorDictReplayBuffer"]

SERVICE_KEYS = ("index", "index_generation", "priority_weight", "goal_index")
"""Entries that samples carry and that are not stored, so that a sample can be extended again."""


class TensorDictReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` of TensorDicts.

    Samples have `index` (and `index_generation`, `priority_weight`, masks…) as entries beside the data, so that a batch can be handed
    back to `update_tensordict_priority` as it is.

    Args:
        priority_key: the entry that holds priorities, `"td_error"` by default.
        **kwargs: as `ReplayBuffer`.
    """

    merges_info = True

    def __init__(self, *, priority_key: str | Key = "td_error", **kwargs: Any) -> None:
        self._priority_key = priority_key
        super().__init__(**kwargs)

    @property
    def priority_key(self) -> str | Key:
        """The entry that holds priorities."""
        return self._priority_key

    def sample(
        self,
        batch_size: int | None = None,
        return_info: bool = False,
        include_info: bool | None = None,
        *,
        timeout: float | None = None,
    ) -> Any:
        """Draws a batch; as `ReplayBuffer.sample`.

        Args:
            batch_size: size of this draw; None takes the buffer's.
            return_info: return `(data, info)`.
            include_info: False leaves `index` and the like out of the data.
            timeout: seconds to wait for a batch that is drawn ahead.
        """
        data = super().sample(batch_size, return_info, timeout=timeout)
        if include_info is False:
            batch = data[0] if return_info else data
            for name in SERVICE_KEYS:
                if is_tensor_collection(batch) and name in batch:
                    del batch[name]
        return data

    def update_tensordict_priority(self, data: TensorDictBase) -> None:
        """Sets the priorities of a sampled batch from its entry `priority_key`; rows overwritten since are skipped where stamps tell.

        Of a window that a `Sequence` made, the anchor gets the largest priority of the rows that are valid and to be learned from.

        Raises:
            KeyError: `data` has no `index` or no such entry.
            PriorityError: a priority is NaN, infinite or negative.
        """
        index, priority, generation = priorities_of(data, self._priority_of(data))
        self.update_priority(index, priority, generation=generation)

    def _priority_of(self, data: TensorDictBase) -> Tensor:
        """The priorities that a sampled batch carries, one or several per row."""
        return carried_priority(data, self._priority_key)

    def _carried_priority(self, batch: Batch) -> Tensor | None:
        """The priorities that new records bring along as their entry `priority_key`; None where some have no such entry."""
        key = (self._priority_key,) if isinstance(self._priority_key, str) else tuple(self._priority_key)
        if isinstance(batch, Rows):
            return batch.get(key) if key in batch.keys else None
        records: list[Any] = list(batch)  # type: ignore[call-overload]
        values = [record.get(key, None) if isinstance(record, TensorDictBase) else None for record in records]
        if any(value is None for value in values):
            return None
        return torch.stack([torch.as_tensor(value, device="cpu").reshape(-1).to(torch.float64) for value in values])

    def _default_writer(self) -> Writer:
        return make_writer(None, TensorDictRoundRobinWriter)

    def _incoming(self, data: Any) -> Any:
        if isinstance(data, Rows):
            return _plain_rows(data)
        if not is_tensor_collection(data):
            if not isinstance(data, dict | list | tuple):
                raise _no_tensordict(type(data).__name__)
            return data
        if isinstance(data, TensorDictBase) and any(name in data for name in SERVICE_KEYS):
            return data.exclude(*SERVICE_KEYS)
        return data


def _plain_rows(rows: Rows) -> Rows:
    """Rows that came over the wire, without the entries that samples carry."""
    if isinstance(rows.spec, str):
        raise _no_tensordict("Tensor")
    if rows.spec[0] != "td" or not any(name in SERVICE_KEYS for name, _ in rows.spec[-1]):
        return rows
    places = [place for place, key in enumerate(rows.keys) if key[0] not in SERVICE_KEYS]
    if not places:
        raise LayoutError("data must hold at least one tensor; got none beside those that samples carry")
    spec = (*rows.spec[:-1], tuple(part for part in rows.spec[-1] if part[0] not in SERVICE_KEYS))
    return Rows([rows.keys[i] for i in places], [rows.tensors[i] for i in places], spec, rows.count, rows.checked)


def _no_tensordict(kind: str) -> LayoutError:
    return LayoutError(f"data must be a TensorDict; got {kind}: a ReplayBuffer takes anything")
