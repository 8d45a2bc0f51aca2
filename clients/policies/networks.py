"""Small networks for small tasks, with initial weights from a generator."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

__all__ = ["Perceptron", "QNetwork", "flat_size"]


class Perceptron(nn.Module):
    """Rows `[N, *inputs]` (flattened, as float32) to `[N, outputs]` through hidden layers.

    Args:
        inputs, outputs: numbers per row.
        hidden: widths of the hidden layers.
        activation: after each hidden layer.
        gain: None: initial weights are uniform within `1/sqrt(inputs)`, as in `nn.Linear`. Otherwise they are orthogonal, those of
            the hidden layers with gain sqrt(2), those of the last with `gain`, and biases are 0.
        generator: draws the initial weights.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        hidden: Sequence[int] = (64, 64),
        activation: type[nn.Module] = nn.ReLU,
        gain: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for fan_in, fan_out in itertools.pairwise([inputs, *hidden, outputs]):
            linear = nn.Linear(fan_in, fan_out)
            if gain is None:
                for parameter in (linear.weight, linear.bias):
                    nn.init.uniform_(parameter, -(fan_in**-0.5), fan_in**-0.5, generator=generator)
            else:
                is_last = len(layers) == 2 * len(hidden)
                nn.init.orthogonal_(linear.weight, gain if is_last else 2**0.5, generator=generator)
                nn.init.zeros_(linear.bias)
            layers += [linear, activation()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, rows: Tensor) -> Tensor:
        """`[N, outputs]`."""
        result: Tensor = self.layers(rows.flatten(1).float())
        return result


class QNetwork(Perceptron):
    """Observations `[N, *obs]` to action values `[N, actions]` through hidden ReLU layers."""

    def __init__(
        self, inputs: int, actions: int, *, hidden: Sequence[int] = (128, 128), generator: torch.Generator | None = None
    ) -> None:
        super().__init__(inputs, actions, hidden=hidden, generator=generator)


def flat_size(space: Space[Any], name: str) -> int:
    """Numbers per row of `space`; raises TypeError unless it is a Box."""
    if not isinstance(space, spaces.Box):
        raise TypeError(f"{name} ({space}) must be a Box; got {type(space).__name__}")
    size = 1
    for extent in space.shape:
        size *= extent
    return size
