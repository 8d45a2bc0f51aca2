"""The collector for environments that step on their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from clients.async_environments import AsyncEnvironments
from clients.collector import Collector

__all__ = ["AsyncCollector"]


class AsyncCollector(Collector):
    """A `Collector` over `AsyncEnvironments`: only those that answered take their next step.

    Both limits of `collect` are "at least". Environments go on where they are from one call to the next, also after
    `n_episode`, so episodes that are under way aren't lost; short ones come more often than long ones. Rows of one environment
    are in the order of time. Raises TypeError for environments that step together.
    """

    def _wrapped(self, env: Any) -> Any:
        if not isinstance(env, AsyncEnvironments):
            raise TypeError(
                f"env ({type(env).__name__}) must be AsyncEnvironments; environments that step together belong to a Collector"
            )
        return env

    def _wanted(self, n_episode: int | None) -> np.ndarray:
        return np.ones(self.environments.num_envs, dtype=np.bool_)

    def _retire(self, active: np.ndarray, finished: np.ndarray, missing: int) -> None:
        pass

    def _end_episodes(self) -> None:
        pass
