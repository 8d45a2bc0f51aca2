"""Which column of a file is which entry of a step: the names that recorded data goes by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from replay_service.buffer.trajectory import as_key
from replay_service.errors import LayoutError, key_name
from replay_service.specs import Key

__all__ = [
    "ACTION",
    "DONE",
    "NEXT_OBSERVATION",
    "OBSERVATION",
    "REWARD",
    "TERMINATED",
    "TRAJECTORY",
    "TRUNCATED",
    "ColumnNames",
]

OBSERVATION: Key = ("observation",)
ACTION: Key = ("action",)
NEXT_OBSERVATION: Key = ("next", "observation")
REWARD: Key = ("next", "reward")
DONE: Key = ("next", "done")
TERMINATED: Key = ("next", "terminated")
TRUNCATED: Key = ("next", "truncated")
TRAJECTORY: Key = ("collector", "traj_ids")

ALIASES: dict[Key, tuple[str, ...]] = {
    OBSERVATION: ("observations", "obs", "state", "states"),
    ACTION: ("actions", "act"),
    NEXT_OBSERVATION: ("next_observation", "next_observations", "next_obs", "obs_next", "next_state", "next_states"),
    REWARD: ("reward", "rewards", "rew"),
    DONE: ("done", "dones"),
    TERMINATED: ("terminated", "terminations", "terminals", "terminal"),
    TRUNCATED: ("truncated", "truncations", "timeouts", "timeout"),
    TRAJECTORY: ("traj_ids", "traj_id", "trajectory_ids", "trajectory_id", "episode", "episode_id", "episode_ids"),
}
"""Further names of each entry, besides its own with dots or slashes (`next.reward`, `next/reward`)."""

NEEDED = (OBSERVATION, ACTION, REWARD, NEXT_OBSERVATION)
ENDS = (TERMINATED, TRUNCATED, DONE)


class ColumnNames:
    """The columns of a file by the entry that they become; a column may lie in groups, and then its name has slashes.

    Args:
        path: the file, for messages.
        found: the names of all columns.
        columns: the names that entries have in this file, `{"observation": "pixels", ("next", "reward"): "r"}`; others are looked for
            under their own name and under `ALIASES`.
        extra: further columns to keep, under their own names: True for all, or their names.

    Raises:
        LayoutError: a column is missing; the message names the file, what is missing, and what is there.
        TypeError: `columns` or `extra` is not what it should be.
    """

    def __init__(
        self,
        path: str,
        found: Iterable[str],
        columns: Mapping[Any, str] | None = None,
        extra: bool | Sequence[str] = False,
    ) -> None:
        self._path = path
        self._found = {_parts(name): name for name in found}
        given = {as_key("columns", key): _parts(name) for key, name in (columns or {}).items()}
        self.names: dict[Key, str] = {}
        for entry in (*ALIASES, *(key for key in given if key not in ALIASES)):
            if entry in given:
                self._require(given[entry], entry)
                self._take(entry, given[entry])
            else:
                self._look_up(entry)
        self._check()
        self._take_extra(extra)

    @property
    def has_trajectories(self) -> bool:
        """Whether the file tells trajectories apart by ids."""
        return TRAJECTORY in self.names

    def _look_up(self, entry: Key) -> None:
        places = [entry, *(_parts(alias) for alias in ALIASES[entry])]
        place = next((place for place in places if self._is_there(place)), None)
        if place is not None:
            self._take(entry, place)

    def _is_there(self, place: Key) -> bool:
        return any(name[: len(place)] == place for name in self._found)

    def _require(self, place: Key, entry: Key) -> None:
        if not self._is_there(place):
            raise LayoutError(
                f"{'/'.join(place)} (for {key_name(entry)}) must be a column of {self._path}; it has {self._listed()}"
            )

    def _take(self, entry: Key, place: Key) -> None:
        """Lets the column `place`, or all columns of the group, be `entry`."""
        for parts, name in self._found.items():
            if parts[: len(place)] == place:
                self.names[(*entry, *parts[len(place) :])] = name

    def _check(self) -> None:
        missing = [key_name(entry) for entry in NEEDED if not self._has(entry)]
        if not any(self._has(entry) for entry in ENDS):
            missing.append("next.terminated, next.truncated or next.done")
        if missing:
            raise LayoutError(
                f"{self._path} must have columns for {missing}; it has {self._listed()}: name them by "
                f"columns={{'observation': …}}, or write what is missing"
            )

    def _has(self, entry: Key) -> bool:
        return any(key[: len(entry)] == entry for key in self.names)

    def _take_extra(self, extra: bool | Sequence[str]) -> None:
        used = set(self.names.values())
        if extra is False:
            return
        if extra is True:
            self.names.update({parts: name for parts, name in self._found.items() if name not in used})
            return
        if isinstance(extra, str) or not isinstance(extra, Sequence):
            raise TypeError(f"extra ({extra!r}) must be True, or a list of names of columns")
        for wanted in extra:
            self._require(_parts(wanted), (wanted,))
            self._take(_parts(wanted), _parts(wanted))

    def _listed(self) -> list[str]:
        return sorted(self._found.values())


def _parts(name: str) -> Key:
    """The levels of a name with slashes or dots."""
    if not isinstance(name, str) or not name.strip("/."):
        raise TypeError(f"column ({name!r}) must be the name of a column")
    return tuple(name.strip("/").replace("/", ".").split("."))
