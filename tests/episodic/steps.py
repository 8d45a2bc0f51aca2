"""Steps whose entries all follow from one number, for tests of episodic buffers."""

from __future__ import annotations

from typing import Any

import numpy as np

from replay_service.episodic import Batch, ReplayBuffer

__all__ = ["filled", "listed", "rows", "tr"]


def tr(number: int, term: bool = False, trunc: bool = False, **entries: Any) -> Batch:
    """One step: obs, act and rew are `number`, obs_next is the one after."""
    step = {"obs": number, "act": number, "rew": float(number), "obs_next": number + 1, "info": {}}
    return Batch({**step, "terminated": term, "truncated": trunc, **entries})


def rows(numbers: list[int], term: list[int] | None = None, **entries: Any) -> Batch:
    """As many steps, `[n]`."""
    values = np.array(numbers)
    flags = np.zeros(values.size, bool) if term is None else np.array(term, bool)
    step = {"obs": values, "act": values, "rew": values.astype(float), "obs_next": values + 1}
    return Batch({**step, "terminated": flags, "truncated": np.zeros(values.size, bool), **entries})


def listed(added: tuple[Any, ...]) -> list[Any]:
    """What `add` returned for one step: [slot, return, length, first slot]."""
    return [column.tolist()[0] for column in added]


def filled(size: int, count: int, ends: tuple[int, ...] = (), **settings: Any) -> ReplayBuffer:
    """A buffer of the steps 0, 1, …, of which `ends` are terminated."""
    buffer = ReplayBuffer(size, **settings)
    for number in range(count):
        buffer.add(tr(number, number in ends))
    return buffer
