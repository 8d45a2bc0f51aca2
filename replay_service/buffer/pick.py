"""A draw before its records are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["Pick"]


@dataclass(slots=True)
class Pick:
    """A draw before its records are read: flat record numbers int64 `[n]`, and what the sampler says of them."""

    records: Tensor
    info: dict[str, Any]

    def followed_by(self, other: Pick) -> Pick:
        """This draw and another one of the same buffer behind it, with what is said of both."""
        counts = (self.records.numel(), other.records.numel())
        info: dict[str, Any] = {}
        for name in self.info.keys() & other.info.keys():
            values = (self.info[name], other.info[name])
            if all(isinstance(value, tuple) for value in values):
                info[name] = tuple(map(torch.cat, zip(*values, strict=True)))
            elif all(isinstance(v, Tensor) and v.ndim and v.shape[0] == n for v, n in zip(values, counts, strict=True)):
                info[name] = torch.cat(values)
        return Pick(torch.cat([self.records, other.records]), info)
