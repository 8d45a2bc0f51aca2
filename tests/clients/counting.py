"""An environment that counts, so that every stored observation says where it came from."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class CountingEnv(gymnasium.Env[np.ndarray, int]):
    """Shows `name * 1000 + steps so far` (0 steps after a reset), rewards 1 per step, ends after `length` steps.

    `truncates`: the end is the clock's (truncated) and not the task's (terminated).
    """

    observation_space = spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, length: int, name: int = 0, *, truncates: bool = False) -> None:
        self._length = length
        self._name = name
        self._truncates = truncates
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._shown(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        over = self._steps == self._length
        return self._shown(), 1.0, over and not self._truncates, over and self._truncates, {}

    def _shown(self) -> np.ndarray:
        return np.full(2, self._name * 1000 + self._steps, dtype=np.float32)


class StepEnv(CountingEnv):
    """Shows `100 * name + steps so far` as one number."""

    observation_space = spaces.Box(-1e6, 1e6, (), np.float64)  # type: ignore[assignment]

    def _shown(self) -> Any:
        return np.asarray(float(self._name * 100 + self._steps))


class FailingEnv(CountingEnv):
    """Breaks at its third step."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        answer = super().step(action)
        if self._steps == 3:
            raise OSError("the simulator is gone")
        return answer
