"""Recorded episodes of CartPole-v1, and the files that others keep such episodes in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
from numpy.typing import NDArray

__all__ = ["Episode", "as_columns", "cartpole", "write_hdf5", "write_minari", "write_npz"]

EPISODES = 6
MOST_STEPS = 15


@dataclass(frozen=True)
class Episode:
    """One episode of `T` steps, with `T + 1` observations."""

    observations: NDArray[np.float32]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float64]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]


@lru_cache(maxsize=1)
def cartpole() -> tuple[Episode, ...]:
    """Some episodes under random actions: long ones are truncated, the last one is cut off."""
    env = gymnasium.make("CartPole-v1", max_episode_steps=MOST_STEPS)
    actions = np.random.default_rng(0)
    episodes = []
    for number in range(EPISODES):
        observation, _ = env.reset(seed=number)
        seen, rows = [observation], []
        is_over = False
        while not is_over and not (number == EPISODES - 1 and len(rows) == 4):
            action = int(actions.integers(2))
            observation, reward, terminated, truncated, _ = env.step(action)
            seen.append(observation)
            rows.append((action, reward, terminated, truncated))
            is_over = terminated or truncated
        columns = [np.array(column) for column in zip(*rows, strict=True)]
        episodes.append(Episode(np.stack(seen), columns[0], columns[1].astype(np.float64), columns[2], columns[3]))
    env.close()
    assert any(episode.terminations[-1] for episode in episodes)
    assert any(episode.truncations[-1] for episode in episodes)
    return tuple(episodes)


def as_columns(names: str = "own") -> dict[str, Any]:
    """The same steps one behind the other, as columns under names of ours (`own`), of D4RL (`d4rl`) or short ones (`short`)."""
    episodes = cartpole()
    steps = {
        "observation": np.concatenate([episode.observations[:-1] for episode in episodes]),
        "action": np.concatenate([episode.actions for episode in episodes]),
        "next/observation": np.concatenate([episode.observations[1:] for episode in episodes]),
        "next/reward": np.concatenate([episode.rewards for episode in episodes]),
        "next/terminated": np.concatenate([episode.terminations for episode in episodes]),
        "next/truncated": np.concatenate([episode.truncations for episode in episodes]),
    }
    renamed = {
        "own": list(steps),
        "d4rl": ["observations", "actions", "next_observations", "rewards", "terminals", "timeouts"],
        "short": ["obs", "act", "next_obs", "rew", "terminated", "truncated"],
    }[names]
    return dict(zip(renamed, steps.values(), strict=True))


def write_minari(path: Path, nested: bool = False) -> Path:
    """A file as Minari writes them; `nested`: observations of a dict space."""
    with h5py.File(path, "w") as file:
        for number, episode in enumerate(cartpole()):
            group = file.create_group(f"episode_{number}")
            group.attrs["id"] = number
            if nested:
                inner = group.create_group("observations")
                inner["cart"], inner["pole"] = episode.observations[:, :2], episode.observations[:, 2:]
            else:
                group["observations"] = episode.observations
            group["actions"], group["rewards"] = episode.actions, episode.rewards
            group["terminations"], group["truncations"] = episode.terminations, episode.truncations
            group.create_group("infos")["note"] = np.zeros(len(episode.rewards) + 1)
    return path


def write_hdf5(path: Path, columns: dict[str, Any]) -> Path:
    """Columns as datasets; slashes make groups."""
    with h5py.File(path, "w") as file:
        for name, column in columns.items():
            file[name] = column
    return path


def write_npz(path: Path, columns: dict[str, Any]) -> Path:
    """Columns in an archive."""
    np.savez(path, **columns)
    return path
