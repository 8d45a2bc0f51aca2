"""Groups: records that answer the same prompt, drawn together (for group-relative objectives such as GRPO, arXiv:2402.03300)."""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from typing import Any, Literal, get_args

import torch
from tensordict import NonTensorData, is_tensor_collection
from torch import Tensor

from replay_service.buffer.counts import positive_integer
from replay_service.buffer.episode_marks import entry_of
from replay_service.buffer.samplers.base import Sampler, require_rows
from replay_service.buffer.storages.base import Storage
from replay_service.buffer.trajectory import as_key
from replay_service.errors import key_name
from replay_service.specs import Key

__all__ = ["PromptGroupSampler", "Strategy"]

Strategy = Literal["random", "recency", "reward", "variance"]


class PromptGroupSampler(Sampler):
    """Draws groups of records that have the same value under `group_key`, all groups equally likely, and from each as many records.

    Batches are group after group. Within a batch no group and no record comes twice, as long as there are enough; what is missing is
    drawn with replacement, and said once as a warning. Draws use nothing up.

    Args:
        num_groups: groups of a batch; the batch size must be divisible by it.
        samples_per_group: records of a group, likewise. Exactly one of the two.
        group_key: the entry that tells which group a record is of: a number, several, or a string.
        strategy: which records of a group. `"random"`: all equally likely. `"recency"`: those written last. `"reward"`: those of the
            highest reward. `"variance"`: those whose rewards differ most (of equal ones, those of the highest sum; Li et al. 2025, RePO,
            arXiv:2506.09340).
        reward_key: the entry with rewards, the mean of which counts; for the last two strategies.
        cache_groups: False looks at all records in every draw, for groups that change without a word to the buffer.

    Raises:
        TypeError: both or neither of `num_groups` and `samples_per_group`, or no key.
        ValueError: a number that is not positive, or no such strategy.
    """

    def __init__(
        self,
        *,
        num_groups: int | None = None,
        samples_per_group: int | None = None,
        group_key: Any = "query",
        strategy: Strategy = "random",
        reward_key: Any = ("next", "reward"),
        cache_groups: bool = True,
    ) -> None:
        if (num_groups is None) == (samples_per_group is None):
            raise TypeError(
                "exactly one of num_groups and samples_per_group must be given; "
                f"got num_groups={num_groups}, samples_per_group={samples_per_group}"
            )
        if strategy not in get_args(Strategy):
            raise ValueError(f"strategy ({strategy!r}) must be one of {list(get_args(Strategy))}")
        self._num_groups = None if num_groups is None else positive_integer(num_groups, "num_groups")
        self._per_group = (
            None if samples_per_group is None else positive_integer(samples_per_group, "samples_per_group")
        )
        self._group_key = as_key("group_key", group_key)
        self._reward_key = as_key("reward_key", reward_key)
        self._strategy = strategy
        self._caches = bool(cache_groups)
        self._storage: Storage | None = None
        self._newest: int | None = None
        self._has_warned = False
        # Members in the order they were written, as the keys of dictionaries: found, added and taken out at a constant cost.
        self._groups: dict[Hashable, dict[int, None]] = {}
        self._group_of: dict[int, Hashable] = {}
        self._loaded_order: Tensor | None = None

    # -- draws ------------------------------------------------------------------------------------------------------

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draws groups: records int64 `[batch_size]`, group after group, no info.

        Raises:
            EmptyBufferError: there are no records.
            ValueError: `batch_size` cannot be divided into groups.
            KeyError: a record has no entry `group_key`, or no number under `reward_key` where rewards decide.
        """
        count, size = self._divided(batch_size)
        stored = require_rows(storage)
        if storage is not self._storage or len(self._group_of) != stored or not self._caches:
            self._look_at_all(storage)
        generator = storage.generator
        names = list(self._groups)
        chosen = _completed(torch.randperm(len(names), generator=generator, device="cpu"), count, generator)
        self._warn_of(count - len(names), "groups")
        parts = []
        for place in chosen.tolist():
            members = torch.tensor(list(self._groups[names[place]]), device="cpu")
            self._warn_of(size - members.numel(), f"records of group {names[place]!r:.80}")
            parts.append(_completed(self._ordered(storage, members, size), size, generator))
        return torch.cat(parts), {}

    def _divided(self, batch_size: int) -> tuple[int, int]:
        part = self._num_groups or self._per_group or 1
        if batch_size % part:
            name = "samples_per_group" if self._num_groups is None else "num_groups"
            raise ValueError(f"batch_size ({batch_size}) must be divisible by {name} ({part})")
        return (part, batch_size // part) if self._num_groups is not None else (batch_size // part, part)

    def _ordered(self, storage: Storage, members: Tensor, size: int) -> Tensor:
        """Members int64 `[n]` of a group, those first that the strategy takes first."""
        if self._strategy == "random":
            return members[torch.randperm(members.numel(), generator=storage.generator, device="cpu")]
        if self._strategy == "recency":
            return members.flip(0)
        rewards = entry_of(storage, self._reward_key, members)
        if rewards is None:
            raise KeyError(f"reward_key ({key_name(self._reward_key)}) must be a stored entry of numbers")
        rewards = rewards.reshape(members.numel(), -1).to(torch.float64).mean(1)
        order = rewards.argsort(descending=True, stable=True)
        return members[order if self._strategy == "reward" else _most_varied(rewards, order, size)]

    def _warn_of(self, missing: int, of_what: str) -> None:
        if missing > 0 and not self._has_warned:
            self._has_warned = True
            warnings.warn(f"{missing} {of_what} are missing for a whole batch and drawn again instead", stacklevel=4)

    # -- told of writes ---------------------------------------------------------------------------------------------

    def extend(self, index: Tensor) -> None:
        """Is told of new records, int64 `[n]` in the order they were written."""
        if index.numel() == 0:
            return
        self._newest = int(index[-1])
        self._look_at(index, renewed=True)

    def mark_update(self, index: Tensor, *, storage: Storage | None = None) -> None:
        """Is told of records that were changed in place, which may be of another group now."""
        self._look_at(index, renewed=False)

    def empty(self) -> None:
        """Forgets all records."""
        self._groups.clear()
        self._group_of.clear()
        self._newest = None

    def _look_at(self, records: Tensor, renewed: bool) -> None:
        if self._storage is None or not self._caches:
            return
        try:
            self._take(self._storage, records, renewed)
        except KeyError:
            self._storage = None  # the records are written already: the next draw says what they lack

    def _look_at_all(self, storage: Storage) -> None:
        records = torch.arange(len(storage), device="cpu")
        if self._newest is not None and storage.filled == storage.slots:
            records = records.roll(-self._newest - 1)
        self._groups.clear()
        self._group_of.clear()
        self._take(storage, records, renewed=True)
        self._storage = storage

    def _take(self, storage: Storage, records: Tensor, renewed: bool) -> None:
        """Puts records into their groups; `renewed` ones are the newest, others keep their place."""
        for record, group in zip(records.tolist(), _values_of(storage, self._group_key, records), strict=True):
            before = self._group_of.get(record)
            is_known = record in self._group_of
            if is_known and before == group and not renewed:
                continue
            if is_known:
                members = self._groups[before]
                del members[record]
                if not members:
                    del self._groups[before]
            self._groups.setdefault(group, {})[record] = None
            self._group_of[record] = group

    # -- state ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where writing stands, and in which order groups and their members are known; what they are is read from the storage again."""
        known = [record for members in self._groups.values() for record in members]
        return {"newest": self._newest, "order": torch.tensor(known, dtype=torch.int64, device="cpu")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a state over."""
        newest, order = (
            state_dict["newest"],
            torch.as_tensor(state_dict["order"], dtype=torch.int64, device="cpu").clone(),
        )
        self.empty()
        self._newest = None if newest is None else int(newest)
        self._loaded_order, self._storage = order, None

    def settle(self, storage: Storage) -> None:
        """Looks at all records in the order they were known in, so that groups are drawn as before."""
        order, self._loaded_order = self._loaded_order, None
        if order is None or order.numel() != len(storage) or not self._caches:
            return
        self._storage = storage
        self._look_at(order, renewed=True)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_storage": None, "_groups": {}, "_group_of": {}}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(group_key={self._group_key}, strategy={self._strategy!r}, groups={len(self._groups)})"


def _completed(order: Tensor, wanted: int, generator: torch.Generator | None) -> Tensor:
    """The first `wanted` of `order` int64 `[n]`; where there are less, some of them again."""
    missing = wanted - order.numel()
    if missing <= 0:
        return order[:wanted]
    return torch.cat([order, order[torch.randint(0, order.numel(), (missing,), generator=generator, device="cpu")]])


def _most_varied(rewards: Tensor, order: Tensor, size: int) -> Tensor:
    """Places of the `size` rewards of the highest variance, from `order`, the places by falling reward.

    Such a subset is made of the highest and the lowest ones: moving any other value outwards only raises the variance.
    """
    if order.numel() <= size:
        return order
    subsets = torch.stack([torch.cat([order[:top], order[order.numel() - size + top :]]) for top in range(size + 1)])
    values = rewards[subsets]
    variance, total = values.var(1, correction=0), values.sum(1)
    best = torch.isclose(variance, variance.max(), rtol=1e-12, atol=0.0)
    return subsets[torch.where(best, total, -torch.inf).argmax()]


def _values_of(storage: Storage, key: Key, records: Tensor) -> list[Hashable]:
    """What records have under `key`, in a form that can be compared.

    Raises:
        KeyError: a record has no such entry.
    """
    if storage.columnar:
        column = storage.column(key).flatten(0, storage.ndim - 1)[records]
        return [_hashable(value) for value in column.cpu().unbind(0)]
    return [_hashable(_found(record, key)) for record in storage.get(records)]


def _found(record: Any, key: Key) -> Any:
    found = record
    for part in key:
        has_entries = isinstance(found, dict) or (is_tensor_collection(found) and not isinstance(found, NonTensorData))
        found = found.get(part, None) if has_entries else None
    if found is None:
        raise KeyError(f"group_key ({key_name(key)}) must be an entry of every record")
    return found.data if isinstance(found, NonTensorData) else found


def _hashable(value: Any) -> Hashable:
    if hasattr(value, "tolist"):  # tensors, arrays and their scalars
        value = value.tolist()
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
