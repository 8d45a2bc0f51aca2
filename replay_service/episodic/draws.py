"""Which steps are drawn: every stored one with the same chance. `priorities.PriorityDraws` has others."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from replay_service.episodic.rings import Rings

__all__ = ["Draws", "checked_size"]

Ints = NDArray[np.int64]


def checked_size(batch_size: Any) -> int | None:
    """A number of steps as an integer, or None.

    Raises:
        TypeError: it is neither.
    """
    if batch_size is None:
        return None
    if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer):
        raise TypeError(f"batch_size ({batch_size!r}) must be an integer or None; got {type(batch_size).__name__}")
    return int(batch_size)


class Draws:
    """Uniform draws with replacement. It is told of every step that comes and goes."""

    state_keys: tuple[str, ...] = ()
    """What `state_dict` has."""

    def draw(self, count: int, rings: Rings, random: np.random.RandomState) -> Ints:
        """`count` slots int64 `[count]`, grouped by ring; `rings` hold at least one step."""
        return rings.nth(random.randint(0, rings.total, count))

    def choose(self, count: int, slots: Ints, random: np.random.RandomState) -> Ints:
        """`count` of these stored slots int64 `[n]`, drawn likewise."""
        return slots[random.randint(0, slots.size, count)]

    def moved(self, before: Ints, after: Ints) -> None:
        """Is told of steps that have other slots now, int64 `[n]` each; nothing else is stored there."""

    def keep(self, before: Ints, after: Ints) -> None:
        """Is told that only these steps are left, and have the slots `after`."""

    def written(self, slots: Ints) -> None:
        """Is told of steps that are new at `slots` int64 `[n]`."""

    def forgotten(self, slots: Ints | None) -> None:
        """Is told of slots that hold nothing any more; None: all."""

    def decorate(self, entries: dict[str, Any], slots: Ints) -> None:
        """Adds what belongs to the drawing of steps to what is read of them."""

    def state_dict(self) -> dict[str, Any]:
        """Copies of all that the next draws depend on."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
