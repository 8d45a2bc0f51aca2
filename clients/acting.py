"""From observations to actions to answers: what stands between a collector's loop and its policy and environments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from clients.environments import EnvironmentStep
from clients.step_block import Path, array_of, leaves_of, nested
from replay_service.episodic.batch import Batch

__all__ = ["Actor"]

NOTHING: dict[Path, np.ndarray] = {}
NO_ROWS = np.zeros(0)


class Actor:
    """Lets the environments that wait for an action take one, and remembers what was chosen until they answer.

    environments: give `everyone`, `waiting`, `exchange(action, ids)` and `sample_actions()`, as `VectorEnvironments` does.
    """

    def __init__(self, policy: Any, environments: Any, exploration_noise: bool) -> None:
        self._policy = policy
        self._environments = environments
        self._noise = exploration_noise
        self._state: Any = None  # of all environments, where the policy has one
        self._chosen: dict[Path, np.ndarray] = {}  # ("act",) and ("policy", …): what the environments were told last
        self._info = _InfoColumns()

    def step(self, observation: Mapping[Path, np.ndarray], random: bool) -> tuple[np.ndarray, EnvironmentStep]:
        """Act on what the waiting environments show; (environments that answered, their answers)."""
        ids = self._environments.waiting
        everyone = self._environments.everyone
        where = None if len(ids) == len(everyone) else ids
        if random:
            told = self._environments.sample_actions()[ids]
            chosen: dict[Path, np.ndarray] = {("act",): array_of(_hook(self._policy, "map_action_inverse")(told))}
        else:
            chosen = self._ask(observation, where)
            told = array_of(_hook(self._policy, "map_action")(chosen["act",]))
        self._remember(chosen, where)
        answer: tuple[np.ndarray, EnvironmentStep] = self._environments.exchange(told, ids)
        return answer

    def rows(
        self, ids: np.ndarray | None, step: EnvironmentStep
    ) -> tuple[np.ndarray, dict[Path, np.ndarray], dict[Path, np.ndarray]]:
        """(actions, what else the policy gave, info) to be stored with the answers of `ids` (None: all)."""
        chosen = self._chosen if ids is None else {path: leaf[ids] for path, leaf in self._chosen.items()}
        policy = {path[1:]: leaf for path, leaf in chosen.items() if path[0] == "policy"}
        return chosen["act",], policy, self._info.rows(step.info, len(step.reward))

    def forget(self, ids: np.ndarray | None) -> None:
        """Episodes of `ids` (None: all) begin: the policy's state there is zero again."""
        if ids is None:
            self._state = None
        elif self._state is not None:
            _zero(self._state, ids)

    def _ask(self, observation: Mapping[Path, np.ndarray], ids: np.ndarray | None) -> dict[Path, np.ndarray]:
        shown = observation if ids is None else {path: leaf[ids] for path, leaf in observation.items()}
        batch = Batch(obs=nested(shown), info={})
        state = self._state if ids is None or self._state is None else _taken(self._state, ids)
        result = self._policy(batch, state)
        given = result.keys() if hasattr(result, "keys") else ()
        if "act" not in given:
            raise TypeError(
                f"act (missing) must be in what a policy gives; got {list(given) or type(result).__name__} of {type(self._policy).__name__}"
            )
        act = result["act"]
        if self._noise:
            act = self._policy.exploration_noise(act, batch)
        chosen: dict[Path, np.ndarray] = leaves_of(act, ("act",))
        if "policy" in given and result["policy"] is not None:
            chosen.update(leaves_of(result["policy"], ("policy",)))
        new_state = result["state"] if "state" in given else None
        if new_state is not None and not _is_void(new_state):
            # A copy: the state itself is set to zero where an episode ends.
            chosen.update(leaves_of(_copied(new_state), ("policy", "hidden_state")))
        self._require_rows(chosen, len(self._environments.everyone) if ids is None else len(ids))
        if new_state is not None and not _is_void(new_state):
            self._state = new_state if ids is None else self._merged_state(new_state, ids)
        return chosen

    def _require_rows(self, chosen: Mapping[Path, np.ndarray], count: int) -> None:
        """Before an environment is told: what does not fit would be noticed only after its step, or be spread over all."""
        for path, leaf in chosen.items():
            if leaf.shape[:1] != (count,) or (path[0] == "act" and len(path) > 1):
                raise ValueError(
                    f"{'.'.join(path)} ({list(leaf.shape)}) of {type(self._policy).__name__} must be one array with a row for "
                    f"each of {count} environments"
                )

    def _remember(self, chosen: dict[Path, np.ndarray], ids: np.ndarray | None) -> None:
        if ids is None:
            self._chosen = chosen
            return
        n = len(self._environments.everyone)
        for path in self._chosen.keys() | chosen.keys():
            like = self._chosen.get(path, chosen.get(path, NO_ROWS))
            # A copy: what is held may be the policy's own memory.
            held = like.copy() if path in self._chosen else np.zeros((n, *like.shape[1:]), like.dtype)
            held[ids] = chosen.get(path, 0)
            self._chosen[path] = held

    def _merged_state(self, part: Any, ids: np.ndarray) -> Any:
        if self._state is None:
            self._state = _zeros_like(part, len(self._environments.everyone))
        _write(self._state, part, ids)
        return self._state


class _InfoColumns:
    """Numbers that environments tell besides, as columns: those that the first step shows; zero where one is missing later."""

    def __init__(self) -> None:
        self._leaves: dict[Path, tuple[tuple[int, ...], np.dtype[Any]]] | None = None

    def rows(self, info: dict[str, Any], count: int) -> dict[Path, np.ndarray]:
        """The columns `[count]`."""
        if self._leaves is None:
            told = _numbers(info, count)
            self._leaves = {path: (leaf.shape[1:], leaf.dtype) for path, leaf in told.items()}
        if not self._leaves:
            return NOTHING
        told = _numbers(info, count)
        return {path: told.get(path, np.zeros((count, *shape), dtype)) for path, (shape, dtype) in self._leaves.items()}


def _numbers(info: Mapping[str, Any], count: int, path: Path = ()) -> dict[Path, np.ndarray]:
    """Numeric arrays `[count, …]` of an info dictionary; names with an underscore in front are Gymnasium's own masks."""
    found: dict[Path, np.ndarray] = {}
    for name, value in info.items():
        if name.startswith("_"):
            continue
        if isinstance(value, Mapping):
            found.update(_numbers(value, count, (*path, name)))
        elif isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and len(value) == count:
            found[(*path, name)] = value
    return found


def _hook(policy: Any, name: str) -> Any:
    return getattr(policy, name, _unchanged)


def _unchanged(action: Any) -> Any:
    return action


def _is_void(state: Any) -> bool:
    return hasattr(state, "keys") and not len(state.keys())


def _taken(state: Any, ids: np.ndarray) -> Any:
    if hasattr(state, "keys"):
        return Batch({name: _taken(state[name], ids) for name in state.keys()})  # noqa: SIM118 - may be a Batch
    return state[ids]


def _copied(state: Any) -> Any:
    if hasattr(state, "keys"):
        return {name: _copied(state[name]) for name in state.keys()}  # noqa: SIM118 - may be a Batch
    return array_of(state).copy()


def _zeros_like(state: Any, count: int) -> Any:
    if hasattr(state, "keys"):
        return Batch({name: _zeros_like(state[name], count) for name in state.keys()})  # noqa: SIM118 - may be a Batch
    if isinstance(state, Tensor):
        return state.new_zeros((count, *state.shape[1:]))
    return np.zeros((count, *np.shape(state)[1:]), np.asarray(state).dtype)


def _write(state: Any, part: Any, ids: np.ndarray) -> None:
    if hasattr(state, "keys"):
        for name in state.keys():  # noqa: SIM118 - may be a Batch
            _write(state[name], part[name], ids)
    else:
        state[ids] = part


def _zero(state: Any, ids: np.ndarray) -> None:
    if hasattr(state, "keys"):
        for name in state.keys():  # noqa: SIM118 - may be a Batch
            _zero(state[name], ids)
    else:
        state[ids] = 0
