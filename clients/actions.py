"""Between what a policy says and what an environment takes: actions bounded to [-1, 1] and scaled to the action space."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces
from torch import Tensor

__all__ = ["ActionMap"]

METHODS = ("clip", "tanh", "")


class ActionMap:
    """Bounds and scales actions of a Box; those of other spaces, or of none, stay what they are.

    Args:
        space: the action space of the environments.
        scaling: [-1, 1] becomes [low, high] of the space.
        bound_method: how actions get into [-1, 1] first: "clip", "tanh", or "" for not at all. Without `scaling`, "clip"
            clips to the space.

    Raises:
        ValueError: an unknown method, or `scaling` of a Box without bounds.
    """

    def __init__(self, space: Space[Any] | None, scaling: bool = True, bound_method: str = "clip") -> None:
        if bound_method not in METHODS:
            raise ValueError(f"action_bound_method ({bound_method!r}) must be one of {METHODS}; got another")
        self._box = space if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) else None
        if self._box is not None and scaling and not self._box.is_bounded():
            raise ValueError("action_scaling (True) must be False for an action space without bounds")
        self._scaling = scaling
        self._bound_method = bound_method

    def to_environment(self, act: Any) -> Any:
        """Actions `[N, *act]` in the space, in its dtype."""
        if self._box is None:
            return act
        action = act.detach().cpu().numpy() if isinstance(act, Tensor) else np.asarray(act)
        low, high = self._box.low, self._box.high
        if self._bound_method == "clip":
            action = np.clip(action, -1.0, 1.0) if self._scaling else np.clip(action, low, high)
        elif self._bound_method == "tanh":
            action = np.tanh(action)
        if self._scaling:
            action = low + (high - low) * (action + 1.0) / 2.0
        return action.astype(self._box.dtype, copy=False)

    def from_environment(self, act: Any) -> Any:
        """The actions that `to_environment` turns into `act`."""
        if self._box is None:
            return act
        action = np.asarray(act)
        if self._scaling:
            low, high = self._box.low, self._box.high
            span = np.where(high > low, high - low, 1.0)  # a fixed action can be anything
            action = (action - low) * 2.0 / span - 1.0
        if self._bound_method == "tanh":
            edge = 1.0 - np.finfo(np.float32).eps
            action = np.arctanh(np.clip(action, -edge, edge))
        return action
