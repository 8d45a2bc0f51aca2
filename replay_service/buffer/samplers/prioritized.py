"""Draws in proportion to priorities (Schaul et al. 2015, "Prioritized Experience Replay", arXiv:1511.05952)."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from replay_service.buffer.counts import positive_integer
from replay_service.buffer.priorities import REDUCTIONS, checked_priorities
from replay_service.buffer.samplers.base import Sampler, require_rows
from replay_service.buffer.storages.base import Storage
from replay_service.buffer.sum_tree import SumTree
from replay_service.errors import PriorityError

__all__ = ["PrioritizedSampler"]

FIRST_PRIORITY = 1.0
"""What new records get as long as no priority above zero was set."""

LARGEST_MASS = 1e290
"""What a priority to the power of alpha counts as if it is more, so that the sum of all of them stays finite."""

START_CAPACITY = 2**22
"""Leaves made at once at most; a sampler of a storage without a bound grows as it fills."""


class PrioritizedSampler(Sampler):
    """Record `i` is drawn, with replacement, with probability `(p_i + eps)^alpha / sum_j (p_j + eps)^alpha`.

    Samples come with `priority_weight` `[n]`, the importance weights `(N * P(i))^-beta` over the largest that any record could have:
    `(P(i) / min_j P(j))^-beta`, at most 1. New records take the largest priority that was set so far. With `eps=0` a record of
    priority zero is never drawn.

    Args:
        max_capacity: records it is made for; it grows where a storage turns out to hold more.
        alpha: how much priorities matter; 0 draws uniformly.
        beta: how much weights correct for it; 0 not at all, 1 fully.
        eps: added to every priority, so that no record is forgotten.
        dtype: of `priority_weight`. Priorities themselves are kept in float64.
        reduction: what is made of several priorities of one record: `"max"`, `"min"`, `"mean"` or `"median"`.
        max_priority_within_buffer: new records take the largest priority of those that the buffer holds, instead of the largest so far.
        device: where priorities lie: the CPU, also for None.

    Raises:
        ValueError: `alpha`, `beta` or `eps` is negative or not finite; an unknown `reduction`; another device.
        TypeError: `max_capacity` is no integer, or `dtype` no floating point type.
    """

    keeps_priorities = True

    def __init__(
        self,
        max_capacity: int,
        alpha: float,
        beta: float,
        eps: float = 1e-8,
        dtype: torch.dtype = torch.float,
        reduction: str = "max",
        max_priority_within_buffer: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        self._alpha, self._beta, self._eps = exponent(alpha, "alpha"), exponent(beta, "beta"), exponent(eps, "eps")
        if reduction not in REDUCTIONS:
            raise ValueError(f"reduction ({reduction!r}) must be one of {list(REDUCTIONS)}")
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise TypeError(f"dtype ({dtype}) must be a floating point dtype of torch")
        if device is not None and torch.device(device).type != "cpu":
            raise ValueError(f"device ({device}) must be cpu or None; priorities lie in this machine's memory")
        self.reduction = reduction
        self._dtype = dtype
        self._within_buffer = max_priority_within_buffer
        self._max_size = positive_integer(max_capacity, "max_capacity")
        self._start_over()

    def _start_over(self) -> None:
        capacity = min(self._max_size, START_CAPACITY)
        self._tree = SumTree(capacity, extremes=True)
        # Priorities as they were set: alpha and eps are applied on the way into the tree, once, and may change later.
        self._priorities = np.zeros(capacity)
        self._ranks = SumTree(capacity, extremes=True) if self._within_buffer else None
        self._largest: float | None = None
        self._known = 0

    # -- settings ---------------------------------------------------------------------------------------------------

    @property
    def max_size(self) -> int:
        """Records it can tell apart now."""
        return max(self._max_size, self._tree.capacity)

    @property
    def device(self) -> torch.device:
        """Where priorities lie."""
        return torch.device("cpu")

    @property
    def alpha(self) -> float:
        """How much priorities matter; setting it costs time in proportion to the number of records."""
        return self._alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        alpha = exponent(value, "alpha")
        masses = self._masses(self._priorities[: self._known], alpha)
        self._tree.update_range(0, self._known, masses)
        self._alpha = alpha

    @property
    def beta(self) -> float:
        """How much weights correct for the draws."""
        return self._beta

    @beta.setter
    def beta(self, value: float) -> None:
        self._beta = exponent(value, "beta")

    @property
    def eps(self) -> float:
        """What is added to every priority."""
        return self._eps

    @property
    def default_priority(self) -> float:
        """The priority of the next new record, before `eps` and `alpha`."""
        if self._ranks is not None:
            return self._ranks.max() if self._ranks.total > 0.0 else FIRST_PRIORITY
        return self._largest or FIRST_PRIORITY

    @property
    def total(self) -> float:
        """The sum of all `(p_i + eps)^alpha`."""
        return self._tree.total

    # -- draws ------------------------------------------------------------------------------------------------------

    def sample(self, storage: Storage, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
        """Draws `batch_size` records: int64 `[batch_size]`, and their `priority_weight`.

        Raises:
            EmptyBufferError: there are no records.
            PriorityError: every priority is zero.
        """
        size = require_rows(storage)
        if size < self._known:
            self._forget(size)
        if not self._tree.total > 0.0:
            raise PriorityError(
                f"priorities (of {self._known} records) must not all be zero to draw; set one above zero, or eps"
            )
        uniforms = torch.rand(batch_size, dtype=torch.float64, generator=storage.generator, device="cpu")
        index, masses = self._tree.draw_with_mass(uniforms.numpy())
        weights = (masses / self._tree.min_positive()) ** -self._beta
        if self._dtype == torch.float32:  # NumPy's cast of a batch takes a third of torch's time
            weights = weights.astype(np.float32)
        return torch.from_numpy(index), {"priority_weight": torch.from_numpy(weights).to(self._dtype)}

    def can_sample(self, storage: Storage, batch_size: int) -> bool:
        """Whether there is a record of a priority above zero."""
        return len(storage) > 0 and self._tree.total > 0.0

    # -- priorities -------------------------------------------------------------------------------------------------

    def extend(self, index: Tensor) -> None:
        """Gives new records, int64 `[n]`, the default priority."""
        records = index.numpy()
        if records.size == 0:
            return
        end = int(records.max()) + 1
        self._make_room(end)
        if self._ranks is not None:
            self._ranks.update(records, 0.0)  # what they overwrote counts no more
        self._set_default(records)
        self._known = max(self._known, end)

    def update_priority(self, index: Tensor, priority: Any, *, storage: Storage | None = None) -> None:
        """Sets the priorities of records.

        Args:
            index: int64 `[n]`; of a record named twice, the last priority stands.
            priority: `[n]`, several per record `[n, …]`, or one number for all; finite and not negative.
            storage: whose records they are; not needed.

        Raises:
            PriorityError: a priority is NaN, infinite or negative. Nothing was set.
            IndexError: a record that does not exist. Nothing was set.
        """
        records = torch.as_tensor(index, device="cpu").reshape(-1).numpy()
        values = checked_priorities(priority, records.size, self.reduction).numpy()
        if records.size == 0:
            return
        first, last = records.min(), records.max()
        if first < 0 or last >= self._known:
            wrong = last if last >= self._known else first
            raise IndexError(f"index ({wrong}) must be in [0, {self._known}); got priorities of {self._known} records")
        self._set(records, values)
        largest = float(values.max())
        self._largest = largest if self._largest is None else max(self._largest, largest)

    def mark_update(self, index: Tensor, *, storage: Storage | None = None) -> None:
        """Gives records that were changed in place, int64 `[n]`, the default priority again."""
        records = index.numpy()
        self._set_default(records[records < self._known])

    def empty(self) -> None:
        """Forgets all records, and the largest priority so far."""
        self._start_over()

    def priorities(self) -> Tensor:
        """The priorities of all records, as they were set, float64 `[n]`."""
        return torch.from_numpy(self._priorities[: self._known].copy())

    def _set(self, records: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        self._tree.update(records, self._masses(values, self._alpha))
        self._priorities[records] = values
        if self._ranks is not None:
            self._ranks.update(records, values)

    def _set_default(self, records: NDArray[np.int64]) -> None:
        priority = self.default_priority
        spans = _spans(records)
        if spans is None:
            self._set(records, np.full(records.size, priority))
            return
        mass = self._masses(np.array([priority]), self._alpha)[0]
        for start, stop in spans:
            self._tree.update_range(start, stop, mass)
            self._priorities[start:stop] = priority
            if self._ranks is not None:
                self._ranks.update_range(start, stop, priority)

    def _forget(self, size: int) -> None:
        """Forgets the records behind the first `size`: somebody else, who holds the storage too, emptied it."""
        self._tree.update_range(size, self._known, 0.0)
        if self._ranks is not None:
            self._ranks.update_range(size, self._known, 0.0)
        self._known = size

    def _masses(self, priorities: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
        return np.minimum(priorities + self._eps, largest_base(alpha)) ** alpha

    def _make_room(self, records: int) -> None:
        capacity = self._tree.capacity
        if records <= capacity:
            return
        # Doubling: a storage that grows record by record costs a constant time for each.
        wanted = max(records, 2 * capacity if records > self._max_size else min(2 * capacity, self._max_size))
        self._tree.resize(wanted)
        if self._ranks is not None:
            self._ranks.resize(wanted)
        self._priorities = np.concatenate([self._priorities, np.zeros(wanted - capacity)])

    # -- state ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Exponents, priorities and what the tree made of them, by copy."""
        return {
            "alpha": self._alpha,
            "beta": self._beta,
            "eps": self._eps,
            "largest": self._largest,
            "priorities": self.priorities(),
            "masses": torch.from_numpy(self._tree.state()[: self._known]),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a state over, by copy.

        Raises:
            PriorityError: a saved priority is NaN, infinite or negative. Nothing was loaded.
            ValueError: priorities and masses differ in length, or an exponent is none. Nothing was loaded.
        """
        alpha, beta, eps = (exponent(state_dict[name], name) for name in ("alpha", "beta", "eps"))
        largest = state_dict["largest"]
        known = torch.as_tensor(state_dict["priorities"], device="cpu").numel()
        priorities, masses = (checked_priorities(state_dict[name], known).numpy() for name in ("priorities", "masses"))
        self._start_over()
        self._make_room(known)
        self._alpha, self._beta, self._eps = alpha, beta, eps
        self._largest = None if largest is None else float(largest)
        self._known = known
        # The masses themselves, not what priorities give again: draws are then the same to the last bit.
        self._tree.update_range(0, known, masses)
        self._priorities[:known] = priorities
        if self._ranks is not None:
            self._ranks.update_range(0, known, priorities)

    def dumps(self, path: str | Path) -> None:
        """Writes `sampler.json` and `sampler.npz` into the folder `path`."""
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        state = self.state_dict()
        arrays = {name: state.pop(name).numpy() for name in ("priorities", "masses")}
        np.savez(folder / "sampler.npz", **arrays)
        (folder / "sampler.json").write_text(json.dumps(state))

    def loads(self, path: str | Path) -> None:
        """Reads the state that `dumps` wrote."""
        folder = Path(path)
        state = json.loads((folder / "sampler.json").read_text())
        with np.load(folder / "sampler.npz") as arrays:
            self.load_state_dict({**state, **{name: torch.from_numpy(arrays[name]) for name in arrays.files}})

    def __repr__(self) -> str:
        return f"{type(self).__name__}(alpha={self._alpha}, beta={self._beta}, eps={self._eps}, records={self._known})"


def exponent(value: Any, name: str) -> float:
    """`value` as a float that is finite and not negative.

    Raises:
        TypeError: no number.
        ValueError: negative, NaN or infinite.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} ({value!r}) must be a number; got {type(value).__name__}") from None
    if not 0.0 <= number < math.inf:
        raise ValueError(f"{name} ({number}) must be finite and not negative")
    return number


@lru_cache(maxsize=16)
def largest_base(alpha: float) -> float:
    """The number whose power `alpha` is `LARGEST_MASS`, or infinity if float64 cannot hold it."""
    return 10.0 ** min(math.log10(LARGEST_MASS) / alpha, 308.0) if alpha > 0.0 else math.inf


def _spans(records: NDArray[np.int64]) -> list[tuple[int, int]] | None:
    """The one or two runs (start, stop) of consecutive numbers that a write around a ring is made of; None for any other."""
    if records.size == 0:
        return []
    breaks = np.flatnonzero(np.diff(records) != 1) + 1
    if breaks.size > 1:
        return None
    parts = np.split(records, breaks)
    return [(int(part[0]), int(part[-1]) + 1) for part in parts]
