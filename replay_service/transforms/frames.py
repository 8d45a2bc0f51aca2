"""The last few frames of each step, stacked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from replay_service.buffer.counts import positive_integer
from replay_service.buffer.trajectory import NEXT
from replay_service.specs import Key
from replay_service.transforms.runs import Runs
from replay_service.transforms.transform import Keys, Transform, copied, entry, keys_of

__all__ = ["CatFrames"]

PADDINGS = ("same", "constant")


class CatFrames(Transform):
    """Puts the last `N` frames of a step side by side, so that only one needs to be stored.

    Batches must be made of neighbouring steps: `[T]` slices or windows one after the other, or lines `[B, T]`. Frames before the
    beginning of a trajectory, or of the slice that was drawn of it, are padding. An entry under `next` goes on where the entry of the same
    name at the root ends: its frames are those of the step it came from, without the oldest, and its own.

    Args:
        N: number of frames.
        dim: the dimension of an entry along which they are put, counted from the end: -1, -2, …
        in_keys: entries to stack; None: `"pixels"`.
        out_keys: where the results go; None: in place.
        padding: `"same"` repeats the first frame, `"constant"` takes `padding_value`.
        padding_value: what missing frames are filled with.
        done_key, done_keys: the end flags; None: those of `Runs.of`.

    Raises:
        TypeError, ValueError: a number is out of range, an unknown padding, or `done_key` and `done_keys` are both given.
    """

    def __init__(
        self,
        N: int,  # noqa: N803 - the name that everybody calls it by
        dim: int,
        in_keys: Keys | None = None,
        out_keys: Keys | None = None,
        padding: str = "same",
        padding_value: float = 0,
        done_key: str | Key | None = None,
        done_keys: Keys | None = None,
    ) -> None:
        self.N = positive_integer(N, "N")
        if isinstance(dim, bool) or not isinstance(dim, int) or dim >= 0:
            raise ValueError(f"dim ({dim!r}) must be a negative integer, counted from the end of an entry's shape")
        if padding not in PADDINGS:
            raise ValueError(f"padding ({padding!r}) must be one of {list(PADDINGS)}")
        if done_key is not None and done_keys is not None:
            raise ValueError("done_key and done_keys must not be given together")
        self.dim = dim
        self.padding = padding
        self.padding_value = padding_value
        self.in_keys = keys_of("in_keys", in_keys, [("pixels",)])
        self.out_keys = keys_of("out_keys", out_keys, self.in_keys)
        if len(self.in_keys) != len(self.out_keys):
            raise ValueError(f"out_keys ({len(self.out_keys)}) must be as many as in_keys ({len(self.in_keys)})")
        ends = done_keys if done_key is None else [done_key]
        self.done_keys = None if ends is None else keys_of("done_keys", ends)

    reads_info = True

    def forward(self, data: Any) -> Any:
        """The batch with `N` frames in each of `out_keys`: along `dim` as many times as large.

        Raises:
            KeyError: an entry is missing, or nothing says where trajectories end.
        """
        made = copied(self, data)
        if not data.ndim:
            return self.forward(data.unsqueeze(0).unsqueeze(0)).squeeze(0).squeeze(0)
        return self._with_frames(made, data, Runs.of(made, self.done_keys))

    def sampled(self, data: Any, info: Mapping[Any, Any]) -> Any:
        """As `forward`, for a sample of which `info` says where slices and windows end."""
        marked = copied(self, data)
        if not data.ndim:
            return self.forward(data)
        for name, value in info.items():
            if isinstance(value, Tensor) and value.ndim and value.shape[0] == data.shape[0]:
                marked.set(name, value)
        return self._with_frames(copied(self, data), data, Runs.of(marked, self.done_keys))

    def _with_frames(self, made: Any, data: Any, runs: Runs) -> Any:
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            made.set(out_key, self._stacked(data, in_key, runs))
        return made

    def _stacked(self, data: Any, key: Key, runs: Runs) -> Tensor:
        """The frames of one entry, `[B, *shape]`."""
        batch = data.batch_size
        value = _steps(entry(data, key), batch)
        if value.ndim - 1 < -self.dim:
            raise ValueError(f"dim ({self.dim}) must be one of an entry's own dimensions; got {list(value.shape[1:])}")
        root = data.get(key[1:], None) if key[0] == NEXT and len(key) > 1 else None
        if isinstance(root, Tensor):
            frames = [*self._frames(_steps(root, batch), runs, self.N - 1), value]
        else:
            frames = self._frames(value, runs, self.N)
        made = torch.cat(frames, self.dim)
        return made.reshape(*batch, *made.shape[1:])

    def _frames(self, value: Tensor, runs: Runs, count: int) -> list[Tensor]:
        """The last `count` frames of every step `[n, *shape]`, the oldest first."""
        steps = torch.arange(value.shape[0], device=value.device)
        first = runs.first.to(value.device)
        frames = []
        for age in range(count - 1, -1, -1):
            frame = value[torch.maximum(steps - age, first)]
            if self.padding == "constant":
                missing = (steps - age < first).view(-1, *[1] * (value.ndim - 1))
                frame = frame.masked_fill(missing, self.padding_value)
            frames.append(frame)
        return frames

    def __repr__(self) -> str:
        return f"CatFrames(N={self.N}, dim={self.dim}, in_keys={self.in_keys}, padding={self.padding!r})"


def _steps(value: Tensor, batch: torch.Size) -> Tensor:
    return value.flatten(0, len(batch) - 1)
