"""Priorities as users pass them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from replay_service.errors import PriorityError

__all__ = ["checked_priorities"]


def checked_priorities(priority: Any, count: int) -> Tensor:
    """`priority` (one number, or `count` of them) as float64 `[count]`.

    Raises:
        PriorityError: a priority is NaN, infinite or negative.
        ValueError: another number of entries.
    """
    values = torch.as_tensor(priority).detach().to("cpu", torch.float64).reshape(-1)
    if values.numel() not in (1, count):
        raise ValueError(
            f"priority ({values.numel()} entries) must be a scalar or have one entry per index; got {count}"
        )
    if not bool(torch.isfinite(values).all()) or bool((values < 0).any()):
        wrong = values[~torch.isfinite(values) | (values < 0)][0]
        raise PriorityError(f"priority ({float(wrong)}) must be finite and not negative")
    return values.expand(count)
