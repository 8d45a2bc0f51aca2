"""An environment that is solved at once; `tests.deploy.easy_env:Easy-v0` finds it in any process."""

from __future__ import annotations

import gymnasium

from tests.clients.counting import CountingEnv


class EasyEnv(CountingEnv):
    """Every episode has five steps, whatever the agent does."""

    def __init__(self) -> None:
        super().__init__(5)


gymnasium.register("Easy-v0", entry_point=EasyEnv, reward_threshold=5.0)
