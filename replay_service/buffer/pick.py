"""A draw before its records are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

__all__ = ["Pick"]


@dataclass(slots=True)
class Pick:
    """A draw before its records are read: flat record numbers int64 `[n]`, and what the sampler says of them."""

    records: Tensor
    info: dict[str, Any]
