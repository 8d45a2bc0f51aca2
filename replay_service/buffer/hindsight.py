"""Goals in hindsight: what an episode achieved, given to its own steps as what they should have achieved.

After Andrychowicz et al., *Hindsight Experience Replay*, NeurIPS 2017. Chances are drawn with the records; which step they name, and what
was achieved there, is looked up when the records are read, so that a batch that is read again keeps to the episodes that are stored then.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from replay_service.buffer.episode_keeper import EpisodeKeeper
from replay_service.buffer.episode_marks import EpisodeMarks, entry_of
from replay_service.buffer.markers import END_KEYS
from replay_service.buffer.pick import Pick
from replay_service.buffer.storages.base import Storage
from replay_service.buffer.trajectory import NEXT, as_key
from replay_service.buffer.units import SampleUnit, Transition
from replay_service.errors import LayoutError, key_name
from replay_service.specs import Key
from replay_service.structure import Leaf

__all__ = ["CHANCE", "GOALS", "GOAL_INDEX", "Hindsight", "HindsightStrategy"]

Ints = NDArray[np.int64]

CHANCE = "hindsight_chance"
"""Info of a draw: where in its range the goal of each row lies, float64 in [0, 1), or -1 for rows that keep their own."""

GOALS = "hindsight_goals"
"""Info of a draw that was read: the goals of the rows that get one, `[k, *shape]`."""

GOAL_INDEX = "goal_index"
"""Info of a batch: the record whose achieved goal each row is given, as `index` names it; -1 for rows that keep their own."""


class HindsightStrategy(str, Enum):
    """Which step's achieved goal a row is given."""

    FUTURE = "future"
    """Of its episode, from the row itself to the last stored step, all equally likely."""
    FINAL = "final"
    """The last stored step of its episode."""
    EPISODE = "episode"
    """Any stored step of its episode, all equally likely."""
    RANDOM = "random"
    """Any stored record."""

    def __str__(self) -> str:
        return self.value


class Hindsight(SampleUnit):
    """Says which rows of a draw get another goal, and which one; a unit, because it must be told of writes.

    Args:
        strategy: which step's achieved goal is taken.
        ratio: the chance of each row to get another goal.
        keys: the entries with the desired goal, the achieved goal and the reward.
        end_key: the entry with end flags; those of the usual ones (`done`, `terminated`, `truncated`) that are stored beside it count, too.
        unit: what draws expand into before; None: themselves.

    Raises:
        ValueError: no such strategy, or a ratio out of range.
        TypeError: a key is none.
    """

    needs_order = True

    def __init__(
        self, strategy: Any, ratio: float, keys: tuple[Key, Key, Key], end_key: Any, unit: SampleUnit | None = None
    ) -> None:
        names = [one.value for one in HindsightStrategy]
        if strategy not in names:
            raise ValueError(f"strategy ({strategy!r}) must be one of {names}")
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 <= ratio <= 1:
            raise ValueError(f"her_ratio ({ratio!r}) must be a number in [0, 1]")
        self.strategy = HindsightStrategy(strategy)
        self.ratio = float(ratio)
        self._goal, self._achieved, self._reward = keys
        end = as_key("end_key", end_key)
        beside: list[Key] = [(*end[:-1], name) for name in END_KEYS if name != end[-1]]
        self._keeper = EpisodeKeeper(EpisodeMarks(end_keys=[end, *beside]))
        self._unit = Transition() if unit is None else unit
        self._checked: tuple[Leaf, ...] | None = None

    def require_fit(self, storage: Storage) -> None:
        """Checks that the records of `storage` can be relabelled.

        Raises:
            KeyError: an entry is missing, or nothing marks the ends of episodes.
            LayoutError: what was achieved does not look like what was desired.
        """
        if not storage.filled:
            return
        leaves = storage.leaves()
        if leaves is None or leaves is not self._checked:  # the layout of a table stands for all its records
            first = torch.zeros(1, dtype=torch.int64, device="cpu")
            named = {"goal_key": self._goal, "achieved_goal_key": self._achieved, "reward_key": self._reward}
            found = {name: entry_of(storage, key, first) for name, key in named.items()}
            for name, key in named.items():
                if found[name] is None:
                    stored = "" if leaves is None else f"; got {[key_name(leaf.key) for leaf in leaves]}"
                    raise KeyError(f"{name} ({key_name(key)}) must be a stored entry{stored}")
            _require_alike(self._goal, found["goal_key"], self._achieved, found["achieved_goal_key"])
        if self.strategy is not HindsightStrategy.RANDOM:
            self._keeper.index_of(storage)
        self._checked = leaves

    def expand(self, index: Tensor, info: dict[str, Any], storage: Storage) -> tuple[Tensor, dict[str, Any]]:
        """What the unit makes of the anchors `index` int64 `[B]`, and `CHANCE` for each of its rows."""
        records, info = self._unit.expand(index, info, storage)
        drawn = torch.rand(records.numel(), 2, dtype=torch.float64, generator=storage.generator, device="cpu")
        return records, {**info, CHANCE: torch.where(drawn[:, 0] < self.ratio, drawn[:, 1], -1.0)}

    def find_goals(self, pick: Pick, storage: Storage) -> None:
        """Adds `GOALS` and `GOAL_INDEX` to what is said of a draw; the achieved goals are read in one go."""
        chance = pick.info[CHANCE].numpy()
        rows = np.flatnonzero(chance >= 0)
        sources = np.full(chance.size, -1)
        if rows.size:
            sources[rows] = found = self._sources(pick.records.numpy()[rows], chance[rows], storage)
            goals = entry_of(storage, self._achieved, torch.from_numpy(found))
            if goals is None:
                raise KeyError(f"achieved_goal_key ({key_name(self._achieved)}) must be in every record")
            pick.info[GOALS] = goals
        else:
            pick.info.pop(GOALS, None)
        index = torch.from_numpy(sources)
        kept = index < 0
        named = tuple(part.masked_fill(kept, -1) for part in storage.coordinates(index.clamp(min=0)))
        pick.info[GOAL_INDEX] = named[0] if len(named) == 1 else named

    def _sources(self, records: Ints, chance: NDArray[np.float64], storage: Storage) -> Ints:
        """The flat records whose achieved goals the rows `records` int64 `[k]` get."""
        if self.strategy is HindsightStrategy.RANDOM:
            return (chance * len(storage)).astype(np.int64)
        episodes = self._keeper.index_of(storage)
        slots, lanes = records // episodes.lanes, records % episodes.lanes
        bounds = episodes.bounds_of(slots, lanes)
        if self.strategy is HindsightStrategy.FINAL:
            stops: Ints = bounds.stop * episodes.lanes + lanes
            return stops
        first = bounds.position if self.strategy is HindsightStrategy.FUTURE else np.zeros_like(bounds.position)
        steps = first + (chance * (bounds.length - first)).astype(np.int64)
        sources: Ints = (bounds.start + steps) % episodes.capacity * episodes.lanes + lanes
        return sources

    # -- told of writes ---------------------------------------------------------------------------------------------

    def extend(self, index: Tensor) -> None:
        """Is told of new records."""
        self._keeper.written(index)
        self._unit.extend(index)

    def mark_update(self, index: Tensor, *, storage: Storage | None = None) -> None:
        """Is told of records that were changed in place, which may have moved the ends of episodes."""
        self._keeper.changed(index)
        self._unit.mark_update(index, storage=storage)

    def empty(self) -> None:
        """Forgets all records."""
        self._keeper.forget()
        self._unit.empty()

    def __repr__(self) -> str:
        return f"Hindsight({self.strategy.value!r}, ratio={self.ratio}, unit={self._unit!r})"


def under_next(key: Key) -> Key | None:
    """Where the same entry of the step that follows lies; None for a key that is there already."""
    return None if key[0] == NEXT else (NEXT, *key)


def _require_alike(goal: Key, desired: Tensor | None, achieved_goal: Key, achieved: Tensor | None) -> None:
    if desired is None or achieved is None:
        return
    if (desired.dtype, desired.shape) != (achieved.dtype, achieved.shape):
        shown = [f"{str(one.dtype).removeprefix('torch.')}{list(one.shape[1:])}" for one in (desired, achieved)]
        raise LayoutError(
            f"{key_name(achieved_goal)} must have the dtype and shape of {key_name(goal)}, {shown[0]}; got {shown[1]}"
        )
