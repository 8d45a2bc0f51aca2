"""Draws in proportion to priorities, and the weights that make up for it (Schaul et al., 2016, arXiv:1511.05952)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from replay_service.arguments import numbers_of, real_number
from replay_service.buffer.generations import Generations
from replay_service.buffer.sum_tree import SumTree
from replay_service.episodic.draws import Draws
from replay_service.episodic.rings import Rings
from replay_service.errors import PriorityError

__all__ = ["PriorityDraws"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

EPSILON = float(np.finfo(np.float32).eps)
"""Added to every priority that is set, so that no step is never drawn again."""


class PriorityDraws(Draws):
    """Step `i` is drawn with probability `p_i ** alpha / sum(p ** alpha)`; new steps get the largest `p` so far, 1 at first.

    Its weight is `(p_i ** alpha / p_min ** alpha) ** -beta`, where `p_min` is the smallest priority so far, 1 at first.

    Args:
        size: slots.
        alpha: above 0; 1 draws in proportion to the priorities themselves.
        beta: at least 0; 1 makes up for the draws in full.
        weight_norm: divide the weights of a batch by the largest among them.

    Raises:
        ValueError: `alpha` or `beta` out of range.
    """

    state_keys = ("leaves", "extremes", "beta", "stamps")

    def __init__(self, size: int, alpha: float, beta: float, weight_norm: bool) -> None:
        if not 0.0 < alpha < math.inf:
            raise ValueError(f"alpha ({alpha}) must be above 0 and finite")
        self._tree = SumTree(max(1, size))
        self._stamps = Generations(max(1, size))
        self._alpha = float(alpha)
        self._weight_norm = bool(weight_norm)
        self.beta = beta
        self._start_over()

    def _start_over(self) -> None:
        self._largest = self._smallest = 1.0

    @property
    def beta(self) -> float:
        """How far weights make up for the draws."""
        return self._beta

    @beta.setter
    def beta(self, beta: float) -> None:
        if not 0.0 <= real_number("beta", beta) < math.inf:
            raise ValueError(f"beta ({beta}) must be at least 0 and finite")
        self._beta = float(beta)

    @property
    def leaves(self) -> Floats:
        """`p ** alpha` of all slots, float64 `[size]`, a copy; 0 where no step is stored."""
        return self._tree.state()

    def draw(self, count: int, rings: Rings, random: np.random.RandomState) -> Ints:
        """`count` independent draws by priority."""
        return self._tree.draw(random.random_sample(count))

    def choose(self, count: int, slots: Ints, random: np.random.RandomState) -> Ints:
        """`count` of these slots, by priority."""
        upto = np.cumsum(self._tree.get(slots))
        found = np.searchsorted(upto, random.random_sample(count) * upto[-1], side="right")
        chosen: Ints = slots[np.minimum(found, slots.size - 1)]
        return chosen

    def moved(self, before: Ints, after: Ints) -> None:
        """Priorities go along."""
        leaves = self._tree.get(before)
        self._tree.update(before, 0.0)
        self._tree.update(after, leaves)
        self._stamps.advance(torch.from_numpy(np.concatenate([before, after])))

    def keep(self, before: Ints, after: Ints) -> None:
        """Priorities go along; all others go."""
        leaves = self._tree.get(before)
        self._tree.clear()
        self._tree.update(after, leaves)
        self._stamps.advance_written()

    def written(self, slots: Ints) -> None:
        """Gives new steps the largest priority so far."""
        self.renew(slots)
        self._stamps.advance(torch.from_numpy(slots))

    def renew(self, slots: Ints) -> None:
        """Gives steps the largest priority so far."""
        self._tree.update(slots, self._largest**self._alpha)

    def forgotten(self, slots: Ints | None) -> None:
        """Steps that are gone are not drawn; with all of them the extremes go, too."""
        if slots is not None:
            self._tree.update(slots, 0.0)
            self._stamps.advance(torch.from_numpy(slots))
            return
        self._tree.clear()
        self._stamps.advance_written()
        self._start_over()

    def update(self, slots: Ints, priorities: ArrayLike | torch.Tensor, only: Bools | None = None) -> None:
        """Sets the priorities of steps to `|priority| + 1.19e-7`; with `only` bool `[n]`, of those alone.

        Raises:
            PriorityError: one is NaN or infinite, or its power is. Nothing was set.
            ValueError: not one for each slot.
        """
        if not (isinstance(priorities, np.ndarray) and priorities.dtype.kind in "biuf"):
            priorities = numbers_of("new_weight", priorities, torch.float64).double().numpy(force=True)
        values = np.abs(np.asarray(priorities, np.float64)) + EPSILON
        values = np.broadcast_to(values, slots.shape) if values.ndim == 0 else values.reshape(-1)
        if values.shape != slots.shape:
            raise ValueError(f"new_weight ({values.size} numbers) must be one for each of {slots.size} indices")
        with np.errstate(over="ignore"):
            masses = values**self._alpha
        wrong = np.flatnonzero(~np.isfinite(masses))
        if wrong.size:
            raise PriorityError(f"new_weight ({values[wrong[0]]}) must be finite, also to the power of {self._alpha:g}")
        if only is not None:
            slots, masses, values = slots[only], masses[only], values[only]
        if slots.size == 0:
            return
        self._tree.update(slots, masses)
        self._largest = max(self._largest, float(values.max()))
        self._smallest = min(self._smallest, float(values.min()))

    def generations(self, slots: Ints) -> Ints:
        """How often each slot was written, int64 of the shape of `slots`; -1 if never, or if there is no such slot."""
        stamps: Ints = self._stamps.of(torch.from_numpy(np.ascontiguousarray(slots))).numpy()
        return stamps

    def weights(self, slots: Ints) -> Floats:
        """Weights of steps, not normalised; float64 of the shape of `slots`."""
        weights: Floats = (self._tree.get(slots) / self._smallest**self._alpha) ** -self._beta
        return weights

    def decorate(self, entries: dict[str, Any], slots: Ints) -> None:
        """Adds `weight` (float64) and `generation` (int64), of the shape of `slots`."""
        weights = self.weights(slots)
        if self._weight_norm and weights.size:
            weights = weights / weights.max()
        entries["weight"] = weights
        entries["generation"] = self.generations(slots)

    def state_dict(self) -> dict[str, Any]:
        """Copies of all leaves, of the extremes and of the slots' generations."""
        extremes = np.array([self._largest, self._smallest])
        stamps = self._stamps.state_dict()["stamps"].numpy()
        return {"leaves": self._tree.state(), "extremes": extremes, "beta": self._beta, "stamps": stamps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        stamps, slots = np.array(state["stamps"], np.int64), self._tree.state().shape
        if stamps.shape != slots or np.shape(state["leaves"]) != slots:
            raise ValueError(f"stamps ({list(stamps.shape)}) and leaves must be one for each slot, {list(slots)}")
        largest, smallest = map(float, state["extremes"])
        self._tree.load_state(np.asarray(state["leaves"]))
        self._largest, self._smallest = largest, smallest
        self._beta = float(state["beta"])
        self._stamps.load_state_dict({"stamps": torch.from_numpy(stamps)})
