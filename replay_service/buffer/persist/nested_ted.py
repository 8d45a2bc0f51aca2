"""Episodes one by one: flat data as nested tensors, a row per episode, and these as one group per episode, for HDF5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase

from replay_service.buffer.persist.ted import CUTS, Flat2TED, TED2Flat, ends_of, notes_of, tensors_of
from replay_service.buffer.persist.trees import nested_of
from replay_service.errors import LayoutError
from replay_service.specs import Key

__all__ = ["H5Combine", "H5Split", "Nested2TED", "TED2Nested"]

EPISODE = "traj_"


class TED2Nested(TED2Flat):
    """A save hook: as `TED2Flat`, with a row per episode, whose entries are nested tensors; the arguments are the same."""

    def __call__(self, data: TensorDictBase, path: Path | None = None) -> TensorDict:
        """Episodes `[episodes]` of the steps `[T, *lanes]`; as `TED2Flat.__call__`."""
        flat = super().__call__(data, path)
        ends = ends_of(flat, _flat_name(self.done_key))
        last = torch.nonzero(ends).squeeze(1)
        lengths = torch.diff(last, prepend=torch.tensor([-1], device="cpu"))
        output = TensorDict({}, batch_size=[lengths.numel()])
        for key, rows in tensors_of(flat):
            if key != (CUTS,):  # the lengths say as much
                sizes = (lengths + int(rows.shape[0] != ends.numel())).tolist()
                parts = torch.split(rows, sizes)
                output[key] = nested_of(parts, rows.dtype)
        return _with_notes(output, flat)


class Nested2TED(Flat2TED):
    """A load hook: makes steps of what `TED2Nested` made; the arguments are those of `Flat2TED`."""

    def __call__(self, data: TensorDictBase, out: TensorDictBase | None = None) -> TensorDictBase:
        """The steps `[T, *lanes]` in the order of their slots; as `Flat2TED.__call__`."""
        flat = TensorDict({}, batch_size=[])
        lengths: list[int] = []
        for key, value in tensors_of(data):
            parts = value.unbind()
            if any(part.ndim == 0 for part in parts):
                raise LayoutError(
                    f"{'.'.join(key)} must be nested tensors, one per episode; got a tensor of shape {list(value.shape)}"
                )
            flat[key] = torch.cat(list(parts))
            if key == _as_key(self.done_key):
                lengths = [part.shape[0] for part in parts]
        if not lengths:
            raise LayoutError(f"done_key ({self.done_key}) must be an entry of data; got {list(data.keys(True, True))}")
        cuts = torch.zeros(sum(lengths), dtype=torch.bool, device="cpu")
        cuts[torch.tensor(lengths, device="cpu").cumsum(0) - 1] = True
        flat[CUTS] = cuts
        return super().__call__(_with_notes(flat, data), out)


class H5Split:
    """A save hook behind `TED2Nested`: one entry per episode, with tensors of its own length."""

    def __call__(self, data: TensorDictBase, path: Path | None = None) -> TensorDict:
        """`traj_000`, `traj_001`, … of the episodes `[episodes]`; what is no tensor stays beside them."""
        count = data.shape[0]
        digits = len(str(max(0, count - 1)))
        output = TensorDict({}, batch_size=[])
        tensors = {key: value.unbind() for key, value in tensors_of(data)}
        for number in range(count):
            episode = TensorDict({}, batch_size=[])
            for key, parts in tensors.items():
                episode[key] = parts[number]
            output[f"{EPISODE}{number:0{digits}d}"] = episode
        return _with_notes(output, data)


class H5Combine:
    """A load hook in front of `Nested2TED`: what `H5Split` made, as nested tensors again."""

    def __call__(self, data: TensorDictBase, out: Any = None) -> TensorDict:
        """The episodes `[episodes]`.

        Raises:
            LayoutError: there is no entry `traj_…`.
        """
        names = sorted(key for key in data.keys() if str(key).startswith(EPISODE))  # noqa: SIM118 - not in tensordict
        if not names:
            raise LayoutError(
                f"data must have entries {EPISODE}…, one per episode; got {sorted(map(str, data.keys()))}"
            )
        episodes = [data.get(name) for name in names]
        output = TensorDict({}, batch_size=[len(names)])
        for key, first in episodes[0].items(True, True):
            output[key] = nested_of([episode.get(key) for episode in episodes], first.dtype)
        return _with_notes(output, data)


def _with_notes(output: TensorDict, data: TensorDictBase) -> TensorDict:
    """`output`, with what `data` says that is no tensor."""
    for key, value in notes_of(data):
        output.set_non_tensor(key[0] if len(key) == 1 else key, value)
    return output


def _flat_name(done_key: Any) -> Any:
    """What flat data calls the entry that ends episodes: that of `next`, without it."""
    if isinstance(done_key, tuple) and done_key[0] == "next":
        return done_key[1] if len(done_key) == 2 else done_key[1:]
    return done_key


def _as_key(name: str | Key) -> Key:
    return (name,) if isinstance(name, str) else tuple(name)
