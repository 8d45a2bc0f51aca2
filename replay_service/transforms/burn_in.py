"""The first steps of a sequence, which only bring a recurrent state up to date."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from tensordict import TensorDictBase

from replay_service.buffer.counts import positive_integer
from replay_service.buffer.trajectory import NEXT
from replay_service.transforms.transform import Keys, Transform, copied, entry, keys_of

__all__ = ["BurnIn"]


class BurnIn(Transform):
    """Runs modules over the first `burn_in` steps of every sequence and leaves those steps out of the batch.

    The modules run without gradients, one after the other, on the TensorDict `[B, burn_in]` of the first steps. What they wrote as
    `("next", key)` at the last of them, the recurrent state that comes next, becomes the entry `key` of the first step that is left; at
    the other steps `key` is as stored, or 0 where it is not stored.

    Batches are lines `[B, T]`, which come back as `[B, T - burn_in]`, or flat, `[B * T]` with `slice_len` saying what `T` is, which come
    back flat. All sequences of a batch must be equally long.

    Args:
        modules: functions of a TensorDict `[B, burn_in]` that return it, one or several; an empty list only leaves the steps out.
        burn_in: steps to run over and leave out; 0 changes nothing.
        out_keys: entries that hold recurrent states.
        slice_len: steps per sequence in flat batches.

    Raises:
        TypeError, ValueError: a number is out of range, a module cannot be called, or `out_keys` without modules.
    """

    stateful = True

    def __init__(
        self,
        modules: Callable[[Any], Any] | Iterable[Callable[[Any], Any]],
        burn_in: int,
        out_keys: Keys | None = None,
        slice_len: int | None = None,
    ) -> None:
        self.modules = [modules] if callable(modules) else list(modules)
        if not all(map(callable, self.modules)):
            raise TypeError("modules must be functions of a TensorDict")
        self.burn_in = 0 if burn_in == 0 and not isinstance(burn_in, bool) else positive_integer(burn_in, "burn_in")
        self.slice_len = None if slice_len is None else positive_integer(slice_len, "slice_len")
        if self.slice_len is not None and self.slice_len <= self.burn_in:
            raise ValueError(f"burn_in ({self.burn_in}) must be less than slice_len ({self.slice_len})")
        self.out_keys = keys_of("out_keys", out_keys)
        if self.out_keys and not self.modules:
            raise ValueError("out_keys must come with the modules that write them")

    def forward(self, data: Any) -> Any:
        """The batch without the first steps of its sequences.

        Raises:
            ValueError: the batch is not made of sequences of one length, or they are not longer than `burn_in`.
            KeyError: a module has not written one of `out_keys`.
        """
        made = copied(self, data)
        if self.burn_in == 0:
            return made
        lines = self._lines(made)
        kept = lines[:, self.burn_in :].clone(False)
        if self.modules:
            self._hand_over(self._run(lines[:, : self.burn_in].clone(False)), kept)
        return kept if made.ndim == 2 else kept.reshape(-1)

    def _lines(self, data: TensorDictBase) -> TensorDictBase:
        """The sequences `[B, T]` of a batch."""
        shape = list(data.batch_size)
        if len(shape) == 2:
            lines = data
        elif len(shape) == 1 and self.slice_len is not None and shape[0] % self.slice_len == 0:
            lines = data.reshape(-1, self.slice_len)
        else:
            raise ValueError(
                f"data ({shape}) must be [B, T], or flat with slice_len ({self.slice_len}) dividing its length"
            )
        if lines.batch_size[1] <= self.burn_in:
            raise ValueError(
                f"burn_in ({self.burn_in}) must be less than the length of sequences; got {lines.batch_size[1]}"
            )
        return lines

    def _run(self, burned: Any) -> Any:
        with torch.no_grad():
            for module in self.modules:
                burned = module(burned)
        return burned

    def _hand_over(self, burned: Any, kept: TensorDictBase) -> None:
        for key in self.out_keys:
            state = entry(burned, (NEXT, *key))[:, -1]
            stored = kept.get(key, None)
            value = state.new_zeros(*kept.batch_size, *state.shape[1:]) if stored is None else stored.clone()
            value[:, 0] = state
            kept.set(key, value)

    def __repr__(self) -> str:
        return f"BurnIn({len(self.modules)} module(s), burn_in={self.burn_in})"
