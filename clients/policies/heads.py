"""Distributions over actions as a network's outputs parametrise them: drawn with a given generator, differentiable."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["CategoricalHead", "GaussianHead"]


class CategoricalHead(nn.Module):
    """One of several actions, int64 `[N]`; parameters are logits `[N, actions]`."""

    def drawn(self, logits: Tensor, generator: torch.Generator) -> Tensor:
        """Actions `[N]` by their probability."""
        return torch.multinomial(logits.softmax(-1).cpu(), 1, generator=generator).squeeze(-1)

    def likeliest(self, logits: Tensor) -> Tensor:
        """Actions `[N]` of the highest probability."""
        return logits.argmax(-1)

    def log_probability(self, logits: Tensor, action: Tensor) -> Tensor:
        """`[N]`, of actions `[N]`."""
        return functional.log_softmax(logits, -1).gather(-1, action.long().reshape(-1, 1)).squeeze(-1)

    def entropy(self, logits: Tensor) -> Tensor:
        """`[N]`, in nats."""
        logs = functional.log_softmax(logits, -1)
        return -(logs.exp() * logs).sum(-1)


class GaussianHead(nn.Module):
    """Independent normal actions, float32 `[N, actions]`; parameters are means. Deviations are learnt, the same everywhere."""

    def __init__(self, actions: int, log_scale: float = 0.0) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.full((actions,), log_scale))

    def drawn(self, mean: Tensor, generator: torch.Generator) -> Tensor:
        """Actions `[N, actions]` by their density."""
        noise = torch.randn(mean.shape, generator=generator).to(mean.device)
        return mean + self.log_scale.exp() * noise

    def likeliest(self, mean: Tensor) -> Tensor:
        """The means."""
        return mean

    def log_probability(self, mean: Tensor, action: Tensor) -> Tensor:
        """Log-density `[N]` of actions `[N, actions]`."""
        distance = (action.reshape(mean.shape) - mean) / self.log_scale.exp()
        return (-0.5 * distance.square() - self.log_scale - 0.5 * math.log(2.0 * math.pi)).sum(-1)

    def entropy(self, mean: Tensor) -> Tensor:
        """`[N]`, in nats."""
        return (self.log_scale + 0.5 * math.log(2.0 * math.pi * math.e)).sum().expand(mean.shape[0])
