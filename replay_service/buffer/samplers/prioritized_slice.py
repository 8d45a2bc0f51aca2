"""Slices by priority: a prioritized draw of steps, each of which becomes a slice of its episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from replay_service.buffer.episode_columns import span_steps
from replay_service.buffer.episode_marks import EpisodeMarks
from replay_service.buffer.episodes import Bounds, EpisodeIndex, Slices
from replay_service.buffer.samplers.prioritized import PrioritizedSampler
from replay_service.buffer.samplers.slices import EpisodeSampler, SliceFlags, SliceSize, Span
from replay_service.buffer.storages.base import Storage
from replay_service.errors import PriorityError

__all__ = ["PrioritizedSliceSampler"]

Ints = NDArray[np.int64]

ROUNDS = 8
"""Draws, each of twice as many steps as the one before, until steps of episodes that are too short are left out exactly instead."""


class PrioritizedSliceSampler(EpisodeSampler):
    """Draws steps in proportion to their priorities (as `PrioritizedSampler`) and gives the slice that begins at each.

    Where an episode ends before the slice does, the slice begins earlier, so that it ends with the episode: every step of an episode
    that is long enough is drawn as its priority says, the last one too. `priority_weight` is that of the drawn step, the same for all
    steps of its slice.

    Args:
        max_capacity, alpha, beta, eps, dtype, reduction, max_priority_within_buffer: as `PrioritizedSampler`.
        num_slices, slice_len, end_key, end_keys, traj_key, ends, trajectories, truncated_key, init_key: as `SliceSampler`.
        strict_length: only steps of episodes that are long enough for a whole slice are drawn; else a shorter one is a slice as a whole.
        span: how far a slice may hang over the end of its episode, where it is cut off, before it begins earlier: True, or the right one
            of two, until the drawn step alone is left; an integer by so many steps. Over the beginning it never hangs.
        cache_values, compile: accepted for drop-in use.

    Raises:
        TypeError: both or neither of `num_slices` and `slice_len`, or several that mark ends.
        ValueError: a number out of range.
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
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        end_key: Any = None,
        end_keys: Sequence[Any] | None = None,
        traj_key: Any = None,
        ends: Any = None,
        trajectories: Any = None,
        cache_values: bool = False,
        truncated_key: Any = ("next", "truncated"),
        init_key: Any = "is_init",
        strict_length: bool = True,
        compile: bool | dict[str, Any] = False,
        span: Span = False,
        max_priority_within_buffer: bool = False,
    ) -> None:
        super().__init__(
            SliceSize(num_slices, slice_len),
            EpisodeMarks(traj_key=traj_key, end_key=end_key, end_keys=end_keys, ends=ends, trajectories=trajectories),
            SliceFlags(truncated_key, init_key),
            strict_length,
            span=span,
        )
        self._steps = PrioritizedSampler(max_capacity, alpha, beta, eps, dtype, reduction, max_priority_within_buffer)
        self.reduction = self._steps.reduction
        self._dtype = dtype

    # -- settings: those of the draw of steps -----------------------------------------------------------------------

    @property
    def max_size(self) -> int:
        """Records it can tell apart now."""
        return self._steps.max_size

    @property
    def alpha(self) -> float:
        """How much priorities matter."""
        return self._steps.alpha

    @alpha.setter
    def alpha(self, value: float) -> None:
        self._steps.alpha = value

    @property
    def beta(self) -> float:
        """How much weights correct for the draws."""
        return self._steps.beta

    @beta.setter
    def beta(self, value: float) -> None:
        self._steps.beta = value

    @property
    def eps(self) -> float:
        """What is added to every priority."""
        return self._steps.eps

    @property
    def default_priority(self) -> float:
        """The priority of the next new record."""
        return self._steps.default_priority

    def priorities(self) -> Tensor:
        """The priorities of all records, as they were set, float64 `[n]`."""
        return self._steps.priorities()

    # -- draws ------------------------------------------------------------------------------------------------------

    def can_sample(self, storage: Storage, batch_size: int) -> bool:
        """Whether there is an episode to draw from, and a priority above zero."""
        return super().can_sample(storage, batch_size) and self._steps.can_sample(storage, batch_size)

    def _draw(self, storage: Storage, index: EpisodeIndex, count: int, length: int) -> tuple[Slices, dict[str, Tensor]]:
        if index.count(self._min_length(length)) == 0:
            index.draw_starts(length, np.empty((0, 2)), strict=self._strict)  # raises, and says how long they are
        anchors, weights = self._anchors(storage, index, count, length)
        slots, lanes = anchors // index.lanes, anchors % index.lanes
        bounds = index.bounds_of(slots, lanes)
        _, over = span_steps(self._span, length)
        first = np.minimum(bounds.position, np.maximum(bounds.length - length + over, 0))
        width = np.minimum(bounds.length - first, length)
        start = (bounds.start + first) % index.capacity
        return Slices(start, (start + width - 1) % index.capacity, width, lanes), {"priority_weight": weights}

    def _anchors(self, storage: Storage, index: EpisodeIndex, count: int, length: int) -> tuple[Ints, Tensor]:
        """Records int64 `[count]` drawn by priority from episodes that are long enough, and their weights."""
        records: list[Ints] = []
        weights: list[Tensor] = []
        missing = count
        for turn in range(ROUNDS):
            drawn, info = self._steps.sample(storage, count << turn)
            is_long = self._is_long(index, drawn.numpy(), length)
            records.append(drawn.numpy()[is_long][:missing])
            weights.append(info["priority_weight"][torch.from_numpy(is_long)][:missing])
            missing -= records[-1].size
            if missing == 0:
                return np.concatenate(records), torch.cat(weights)
        rest, weights_of_rest = self._anchors_among_all(storage, index, missing, length)
        return np.concatenate([*records, rest]), torch.cat([*weights, weights_of_rest])

    def _anchors_among_all(self, storage: Storage, index: EpisodeIndex, count: int, length: int) -> tuple[Ints, Tensor]:
        """As `_anchors`, for the rare buffer in which nearly all priority lies on episodes that are too short: looks at all records."""
        masses = (self._steps.priorities().numpy() + self.eps) ** self.alpha
        least = masses[masses > 0.0].min(initial=np.inf)
        upto = np.cumsum(np.where(self._is_long(index, np.arange(masses.size), length), masses, 0.0))
        if not upto[-1] > 0.0:
            raise PriorityError(
                f"priorities must not all be zero in episodes of {self._min_length(length)} steps or more; set one above zero, or eps"
            )
        uniforms = torch.rand(count, dtype=torch.float64, generator=storage.generator, device="cpu").numpy()
        records = np.searchsorted(upto, uniforms * upto[-1], side="right")
        return records, torch.from_numpy((masses[records] / least) ** -self.beta).to(self._dtype)

    def _is_long(self, index: EpisodeIndex, records: Ints, length: int) -> NDArray[np.bool_]:
        bounds: Bounds = index.bounds_of(records // index.lanes, records % index.lanes)
        is_long: NDArray[np.bool_] = bounds.length >= self._min_length(length)
        return is_long

    # -- told of writes ---------------------------------------------------------------------------------------------

    def extend(self, index: Tensor) -> None:
        """Gives new records the default priority, and takes note of their episodes."""
        self._steps.extend(index)
        super().extend(index)

    def update_priority(self, index: Tensor, priority: Any, *, storage: Storage | None = None) -> None:
        """Sets the priorities of records; as `PrioritizedSampler.update_priority`."""
        self._steps.update_priority(index, priority, storage=storage)

    def mark_update(self, index: Tensor, *, storage: Storage | None = None) -> None:
        """Gives records that were changed in place the default priority again, and looks whether ends of episodes moved."""
        self._steps.mark_update(index, storage=storage)
        super().mark_update(index, storage=storage)

    def empty(self) -> None:
        """Forgets all records, and the largest priority so far."""
        self._steps.empty()
        super().empty()

    # -- state ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where writing stands, and the priorities, by copy."""
        return {**super().state_dict(), "steps": self._steps.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a state over, by copy.

        Raises:
            PriorityError, ValueError: as `PrioritizedSampler.load_state_dict`. Nothing was loaded.
        """
        self._steps.load_state_dict(state_dict["steps"])
        super().load_state_dict(state_dict)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._size}, alpha={self.alpha}, beta={self.beta}, eps={self.eps})"
