"""Buffers whose steps are drawn by priority."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from replay_service.arguments import numbers_of
from replay_service.episodic.parts import ReadOptions
from replay_service.episodic.priorities import PriorityDraws
from replay_service.episodic.replay_buffer import EpisodicBuffer, ReplayBuffer, ring_size, seed_of
from replay_service.episodic.saving import BufferSaving
from replay_service.episodic.vector import VectorReplayBuffer, bank_of

__all__ = ["PrioritizedReplayBuffer", "PrioritizedVectorReplayBuffer"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class WeightCalls(BufferSaving):
    """What buffers with priorities have more than others. Batches have a `weight` (float64 `[n]`), and the `generation` of their
    slots (int64 `[n]`), by which a later `update_weight` knows steps that were overwritten meanwhile."""

    def update_weight(
        self,
        index: ArrayLike,
        new_weight: ArrayLike | torch.Tensor,
        *,
        generation: ArrayLike | torch.Tensor | None = None,
    ) -> Bools:
        """Sets the priorities of steps to `|new_weight| + 1.19e-7`; of a step named twice, the last one stands.

        Args:
            index: slots of stored steps, of any shape.
            new_weight: one number for each, or one for all.
            generation: of each slot when it was read, as a batch has it; steps that are gone or overwritten are left out.
                None: whatever is in the slots now.

        Returns:
            Which were set, bool of the shape of `index`.

        Raises:
            PriorityError: one is NaN or infinite. Nothing was set.
            IndexError: without `generation`, a slot that holds no step. Nothing was set.
            ValueError: not one weight or generation for each slot. Nothing was set.
        """
        with self.lock:
            if generation is None:
                slots = self._slots_of(index)
                self._priorities.update(slots.reshape(-1), new_weight)
                return np.ones(slots.shape, np.bool_)
            return self._update_present(self._numbers_of(index), new_weight, generation)

    def _update_present(self, slots: Ints, new_weight: Any, generation: Any) -> Bools:
        stamps = numbers_of("generation", generation).numpy(force=True)
        if stamps.dtype.kind not in "iu" or stamps.size != slots.size:
            raise ValueError(
                f"generation ({stamps.dtype} {list(stamps.shape)}) must be an integer for each of {slots.size} indices"
            )
        present: Bools = (self._priorities.generations(slots) == stamps.reshape(slots.shape)) & self._rings.holds(slots)
        self._priorities.update(slots.reshape(-1), new_weight, present.reshape(-1))
        return present

    def get_weight(self, index: ArrayLike) -> Any:
        """Weights of steps, not normalised: float64 of the shape of `index`; see `PriorityDraws`."""
        with self.lock:
            return self._priorities.weights(self._slots_of(index))[()]

    def init_weight(self, index: ArrayLike) -> None:
        """Gives steps the largest priority so far, as new ones have it."""
        with self.lock:
            self._priorities.renew(self._slots_of(index).reshape(-1))

    def set_beta(self, beta: float) -> None:
        """Changes how far weights make up for the draws; `ValueError` below 0."""
        with self.lock:
            self._priorities.beta = beta

    @property
    def beta(self) -> float:
        """How far weights make up for the draws."""
        return self._priorities.beta

    @property
    def weight(self) -> Floats:
        """`priority ** alpha` of all slots, float64 `[maxsize]`, a copy; 0 where no step is stored."""
        with self.lock:
            return self._priorities.leaves[: self.maxsize]

    @property
    def _priorities(self) -> PriorityDraws:
        return cast("PriorityDraws", self._draws)


class PrioritizedReplayBuffer(WeightCalls, ReplayBuffer):
    """As `ReplayBuffer`; steps are drawn by priority (see `PriorityDraws`), of which new ones have the largest so far.

    Args:
        size: steps.
        alpha: above 0; 1 draws in proportion to the priorities themselves.
        beta: at least 0; 1 makes up for the draws in full.
        weight_norm: divide the weights of a batch by the largest among them.
        stack_num, ignore_obs_next, save_only_last_obs, sample_avail, random_seed, service: as for `ReplayBuffer`.

    Raises:
        TypeError, ValueError: a number that is none or out of range.
    """

    def __init__(
        self,
        size: int,
        alpha: float,
        beta: float,
        weight_norm: bool = True,
        stack_num: int = 1,
        ignore_obs_next: bool = False,
        save_only_last_obs: bool = False,
        sample_avail: bool = False,
        random_seed: int | torch.Generator = 42,
        **service: Any,
    ) -> None:
        options = ReadOptions(stack_num, ignore_obs_next, save_only_last_obs, sample_avail, seed_of(random_seed))
        made_with = {"size": size, "alpha": alpha, "beta": beta, "weight_norm": weight_norm}
        bank = (ring_size(size), 1)
        EpisodicBuffer.__init__(
            self, made_with, options, [bank], PriorityDraws(bank[0], alpha, beta, weight_norm), service=service
        )


class PrioritizedVectorReplayBuffer(PrioritizedReplayBuffer, VectorReplayBuffer):
    """As `VectorReplayBuffer`, with priorities over all its steps as `PrioritizedReplayBuffer`.

    Args:
        total_size, buffer_num: as for `VectorReplayBuffer`.
        alpha, beta, weight_norm: as for `PrioritizedReplayBuffer`.
        stack_num, ignore_obs_next, save_only_last_obs, sample_avail, random_seed, service: as for `ReplayBuffer`.
    """

    def __init__(
        self,
        total_size: int,
        buffer_num: int,
        alpha: float,
        beta: float,
        weight_norm: bool = True,
        stack_num: int = 1,
        ignore_obs_next: bool = False,
        save_only_last_obs: bool = False,
        sample_avail: bool = False,
        random_seed: int | torch.Generator = 42,
        **service: Any,
    ) -> None:
        options = ReadOptions(stack_num, ignore_obs_next, save_only_last_obs, sample_avail, seed_of(random_seed))
        made_with = {"total_size": total_size, "buffer_num": buffer_num}
        made_with.update(alpha=alpha, beta=beta, weight_norm=weight_norm)  # type: ignore[call-overload]
        bank = bank_of(total_size, buffer_num)
        draws = PriorityDraws(bank[0] * bank[1], alpha, beta, weight_norm)
        EpisodicBuffer.__init__(self, made_with, options, [bank], draws, service=service)
