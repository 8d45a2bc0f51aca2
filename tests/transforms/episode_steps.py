"""Steps of episodes whose observations tell episode and step, for tests of what looks at neighbours."""

from __future__ import annotations

import torch
from tensordict import TensorDict


def episode(length: int, number: int = 0, *, truncated: bool = False) -> TensorDict:
    """One episode `[length]`: observation `[length, 2]` is `100 * number + step` twice, the reward of step `i` is `i + 1`."""
    steps = torch.arange(length)
    last = (steps == length - 1)[:, None]
    observation = (100.0 * number + steps)[:, None].repeat(1, 2)
    following = TensorDict(
        {
            "observation": observation + 1,
            "reward": (steps + 1.0)[:, None],
            "done": last,
            "terminated": last & (not truncated),
            "truncated": last & truncated,
        },
        [length],
    )
    return TensorDict({"observation": observation, "next": following}, [length])


def episodes(*lengths: int) -> TensorDict:
    """Several, one after the other."""
    parts = [episode(length, number) for number, length in enumerate(lengths)]
    joined: TensorDict = torch.cat(parts)  # type: ignore[call-overload]
    return joined
