"""Frozen records that cross rooms: what a call returns, and where a service lives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["ConditionalUpdateResult", "SaveReceipt", "ServiceAddress", "UpdateResult"]


@dataclass(frozen=True, slots=True, eq=False)
class UpdateResult:
    """Which rows of an `update_priority` were accepted.

    Attributes:
        updated: bool `[B]`, aligned with the index of the call. False where the row was overwritten since (its generation is not the
            given one), and everywhere if the sampler keeps no priorities.
    """

    updated: Tensor

    @property
    def updated_count(self) -> int:
        """Number of rows whose priority was set."""
        return int(self.updated.sum())

    @property
    def skipped_count(self) -> int:
        """Number of rows that were left alone."""
        return self.updated.numel() - self.updated_count


@dataclass(frozen=True, slots=True, eq=False)
class ConditionalUpdateResult:
    """What `update_if_present` did with each row; `updated`, `version_rejected` and stale rows partition the input.

    Attributes:
        updated: bool `[B]`; True where the record was still the one named by (index, generation) and took the patch.
        version_rejected: bool `[B]`; True where the record was live but lost the version comparison (also to a newer row of the same
            call). None if the call compared no versions.
    """

    updated: Tensor
    version_rejected: Tensor | None = None

    @property
    def updated_count(self) -> int:
        """Number of records that took the patch."""
        return int(self.updated.sum())

    @property
    def version_rejected_count(self) -> int:
        """Number of live records that lost the version comparison."""
        return 0 if self.version_rejected is None else int(self.version_rejected.sum())

    @property
    def stale_count(self) -> int:
        """Number of records that were overwritten or emptied since their generation was read."""
        return self.updated.numel() - self.updated_count - self.version_rejected_count

    @property
    def stale(self) -> Tensor:
        """bool `[B]`: the rows counted by `stale_count`."""
        live = self.updated if self.version_rejected is None else torch.logical_or(self.updated, self.version_rejected)
        return ~live


@dataclass(frozen=True, slots=True)
class SaveReceipt:
    """What a save of a buffer did, and how long others waited for it.

    Attributes:
        path: the checkpoint, on the machine of the buffer.
        size_bytes: bytes of its files.
        written_bytes: those that were written; the others did not change since an earlier checkpoint, and are linked from there.
        took_s: the whole save, in seconds.
        locked_s: how long the buffer's lock was held, all together, in seconds: other calls went on in all the time between.
        longest_lock_s: the longest time that it was held without a break, in seconds.
    """

    path: str
    size_bytes: int
    written_bytes: int
    took_s: float
    locked_s: float
    longest_lock_s: float


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """All that a handle needs to find its service; what a handle pickles as.

    Attributes:
        name: name of the Ray actor.
        namespace: Ray namespace of that name.
        batch_size: the buffer's default sample size, None if it has none.
        transport: `"auto"`, `"ray"` or `"distributed"`.
        backend: payload backend of the tensor channel, `"gloo"` or `"nccl"`.
        timeout_s: default timeout of a call, in seconds.
        merges_info: whether samples carry `index` and the like as keys (TensorDict buffers).
        priority_key: the entry of a sampled batch that holds new priorities.
    """

    name: str
    namespace: str
    batch_size: int | None = None
    transport: str = "auto"
    backend: str = "gloo"
    timeout_s: float = 30.0
    merges_info: bool = True
    priority_key: str | tuple[str, ...] = "td_error"

    @classmethod
    def described(
        cls, name: str, namespace: str, known: Mapping[str, Any], timeout_s: float | None = None
    ) -> ServiceAddress:
        """The address of a running service, from what it says of itself; with another default timeout than its own, if one is given."""
        return cls(
            name,
            namespace,
            known["batch_size"],
            known["transport"],
            known["backend"],
            known["timeout_s"] if timeout_s is None else timeout_s,
            known["merges_info"],
            known["priority_key"],
        )
