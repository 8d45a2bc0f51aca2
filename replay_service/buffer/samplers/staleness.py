"""Draws that prefer fresh records and leave out stale ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from replay_service.buffer.samplers.base import Sampler, require_rows
from replay_service.buffer.storages.base import Storage
from replay_service.errors import EmptyBufferError, key_name
from replay_service.specs import Key

__all__ = ["StalenessAwareSampler"]


class StalenessAwareSampler(Sampler):
    """Record `i` is drawn, with replacement, in proportion to a weight of its staleness `consumer_version - version_i`.

    Samples come with `staleness` `[n]`, float32. A record that is newer than `consumer_version` has a staleness of 0. The weights are
    worked out again when records or settings have changed, in time proportional to the number of records.

    Args:
        max_staleness: records that are staler are never drawn; -1 for no limit.
        staleness_weight_fn: from the staleness float32 `[n]` of the records within the limit to their weights `[n]`. None: `1 / (1 + s)`.
        version_key: the stored entry with the version, one number per record, that a record was collected with.

    Raises:
        ValueError: `max_staleness` is below -1.
    """

    def __init__(
        self,
        max_staleness: int = -1,
        staleness_weight_fn: Callable[[Tensor], Tensor] | None = None,
        version_key: str | Key = "policy_version",
    ) -> None:
        self._weigh = staleness_weight_fn or _inverse
        self._version_key = version_key
        self._consumer_version = 0
        self._max_staleness = _limit(max_staleness)
        self._known: tuple[Tensor, Tensor] | None = None

    @property
    def consumer_version(self) -> int:
        """The version that staleness is counted from."""
        return self._consumer_version

    @consumer_version.setter
    def consumer_version(self, value: int) -> None:
        self._consumer_version = int(value)
        self._known = None

    def increment_consumer_version(self) -> None:
        """Counts `consumer_version` up by one."""
        self.consumer_version += 1

    @property
    def max_staleness(self) -> int:
        """The largest staleness that is drawn; -1 for no limit."""
        return self._max_staleness

    @max_staleness.setter
    def max_staleness(self, value: int) -> None:
        self._max_staleness = _limit(value)
        self._known = None

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draws `batch_size` records: int64 `[batch_size]`, and their `staleness`.

        Raises:
            EmptyBufferError: there are no records, or all are too stale.
            KeyError: there is no entry `version_key`.
            ValueError: the entry is not one number per record, or a weight is negative, NaN or infinite, or all are zero.
        """
        size = require_rows(storage)
        staleness, sums = self._weighed(storage, size)
        total = float(sums[-1])
        uniforms = torch.rand(batch_size, dtype=torch.float64, generator=storage.generator, device="cpu")
        # The first record whose running sum is above the point: one of weight zero adds nothing and is never the first.
        records = torch.searchsorted(sums, uniforms * total, right=True)
        last = torch.searchsorted(sums, sums[-1:])  # rounding may carry a point to the very end
        records = torch.minimum(records, last)
        return records, {"staleness": staleness[records]}

    def can_sample(self, storage: Storage, batch_size: int) -> bool:
        """Whether there is a record that is not too stale."""
        try:
            self._weighed(storage, require_rows(storage))
        except EmptyBufferError:
            return False
        return True

    def extend(self, index: Tensor) -> None:
        """Is told of new records."""
        self._known = None

    def mark_update(self, index: Tensor, *, storage: Storage | None = None) -> None:
        """Is told of changed records: their version may be another."""
        self._known = None

    def empty(self) -> None:
        """Forgets all records; `consumer_version` goes on."""
        self._known = None

    def state_dict(self) -> dict[str, Any]:
        """`consumer_version` and `max_staleness`."""
        return {"consumer_version": self._consumer_version, "max_staleness": self._max_staleness}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes `consumer_version` and `max_staleness` over."""
        version, limit = int(state_dict["consumer_version"]), _limit(state_dict["max_staleness"])
        self._consumer_version, self._max_staleness, self._known = version, limit, None

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(consumer_version={self._consumer_version}, max_staleness={self._max_staleness}, "
            f"version_key={self._version_key!r})"
        )

    def _weighed(self, storage: Storage, size: int) -> tuple[Tensor, Tensor]:
        """Staleness float32 `[size]`, and the running sums float64 `[size]` of the weights; worked out anew only after a change."""
        if self._known is not None and self._known[0].numel() == size:
            return self._known
        versions = self._versions(storage, size)
        staleness = (self._consumer_version - versions).clamp_min(0).to(torch.float32)
        fresh = (
            torch.ones(size, dtype=torch.bool, device="cpu")
            if self._max_staleness < 0
            else staleness <= self._max_staleness
        )
        if not bool(fresh.any()):
            raise EmptyBufferError(
                f"max_staleness ({self._max_staleness}) must leave a record to draw; got {size} staler ones at "
                f"consumer_version {self._consumer_version}: allow more, or renew the collectors' weights more often"
            )
        weights = torch.zeros(size, dtype=torch.float64, device="cpu")
        weights[fresh] = torch.as_tensor(self._weigh(staleness[fresh]), device="cpu").to(torch.float64)
        sums = weights.cumsum(0)
        if not (bool((weights >= 0).all()) and 0.0 < float(sums[-1]) < torch.inf):
            raise ValueError(
                f"staleness_weight_fn must give weights that are finite, not negative and not all zero; got "
                f"{float(weights.min())} to {float(weights.max())}"
            )
        self._known = staleness, sums
        return staleness, sums

    def _versions(self, storage: Storage, size: int) -> Tensor:
        key = (self._version_key,) if isinstance(self._version_key, str) else tuple(self._version_key)
        if storage.columnar:
            versions = storage.column(key)[: storage.filled].to("cpu")
        else:
            versions = torch.tensor(
                [_entry(record, key) for record in storage.get(torch.arange(size, device="cpu"))], device="cpu"
            )
        if versions.numel() != size:
            raise ValueError(f"version_key ({key_name(key)}) must hold one number per record; got {versions.shape}")
        return versions.reshape(-1)


def _inverse(staleness: Tensor) -> Tensor:
    return 1.0 / (1.0 + staleness)


def _limit(value: Any) -> int:
    limit = int(value)
    if limit < -1:
        raise ValueError(f"max_staleness ({limit}) must be -1 for no limit, or not negative")
    return limit


def _entry(record: Any, key: Key) -> Any:
    """The entry of one record that is a TensorDict or a dict, as a number."""
    for name in key:
        try:
            record = record[name]
        except (KeyError, TypeError, IndexError):
            raise KeyError(f"version_key ({key_name(key)}) must be an entry of every record") from None
    return record.item() if isinstance(record, Tensor) else record
