"""Steps of episodes in less space: where `next` of one step is the step that follows, it is kept once.

Steps as they are stored ("TED": everything that a step led to lies under `next`) hold every observation twice. The flat form holds the
observations of an episode of `n` steps once, in `n + 1` rows, one episode after the other, beside `n` rows of everything else:

    steps   observation, action, done…, next: {observation, reward, done, …}          one row per step
    flat    observation [steps + episodes], action, reward, done… [steps]             reward and flags are those of `next`

Episodes are cut at `done_key`, at the newest step, and wherever `next` of a step is not the step that follows, and flags of steps that
are not False are kept, too: nothing is lost, whatever the steps are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase, is_non_tensor
from torch import Tensor

from replay_service.errors import LayoutError, key_name
from replay_service.specs import Key

__all__ = ["DEFAULT_DONE_KEYS", "Flat2TED", "TED2Flat", "ends_of", "notes_of", "plain_entry", "tensors_of"]

DEFAULT_DONE_KEYS = ("done", "truncated", "terminated")
"""The flags of a step, any of which may end its episode."""

CUTS, SHAPE, ROOT, ROOT_FLAGS = "_cuts", "_storage_shape", "_root", "_root_flags"


class Names:
    """What flags, rewards and notes are called; `TED2Flat` and `Flat2TED` have it in common."""

    def __init__(
        self,
        done_key: str | Key,
        shift_key: str = "shift",
        is_full_key: str = "is_full",
        done_keys: Sequence[str | Key] = DEFAULT_DONE_KEYS,
        reward_keys: Sequence[str | Key] = ("reward",),
    ) -> None:
        self.done_key = done_key
        self.shift_key = shift_key
        self.is_full_key = is_full_key
        self.done_keys = {_key(name) for name in done_keys}
        self.reward_keys = {_key(name) for name in reward_keys}

    @property
    def single(self) -> set[Key]:
        """Names of entries of `next` that no step has."""
        return self.done_keys | self.reward_keys


class TED2Flat(Names):
    """A save hook: makes flat data of stored steps.

    Args:
        done_key: the entry that ends episodes.
        shift_key, is_full_key: what the flat data calls `shift` and `is_full`.
        done_keys: names of flags: those under `next` are kept, and those beside it only if one is True.
        reward_keys: names under `next` of which there is one per step.

    Attributes:
        shift: the slot that is written next; a checkpointer sets it.
        is_full: whether the storage is full; then its oldest step lies in that slot. A checkpointer sets it.
    """

    def __init__(
        self,
        done_key: str | Key = ("next", "done"),
        shift_key: str = "shift",
        is_full_key: str = "is_full",
        done_keys: Sequence[str | Key] = DEFAULT_DONE_KEYS,
        reward_keys: Sequence[str | Key] = ("reward",),
    ) -> None:
        super().__init__(done_key, shift_key, is_full_key, done_keys, reward_keys)
        self.shift: int | None = None
        self.is_full: bool | None = None

    def __call__(self, data: TensorDictBase, path: Path | None = None) -> TensorDict:
        """Flat data of the steps `[T, *lanes]`, which come in the order of their slots.

        Returns:
            entries `[T * lanes, …]`, lane after lane, the oldest step first, and `[T * lanes + episodes, …]` for observations.

        Raises:
            LayoutError: there is no `next`, or no `done_key`.
        """
        _require_steps(data, self.done_key)
        oldest = int(self.shift or 0) if self.is_full else 0
        root, ahead = _by_lane(data, oldest)
        doubled = [key for key in ahead if key in root and key not in self.single and _alike(root[key], ahead[key])]
        ends = _lane_ends(data)
        cuts = _cuts(root, ahead, doubled) & ~ends
        done = root[_key(self.done_key)] if _key(self.done_key) in root else ahead[_key(self.done_key)[1:]]
        ends |= _any(done)
        output = self._noted(data.shape, [key for key in root if key in self.done_keys])
        if bool((cuts & ~ends).any()):
            output[CUTS] = cuts
        ends |= cuts
        for key, rows in root.items():
            if key in doubled:
                output[key] = _with_last(rows, ahead[key], ends)
            elif key not in self.single:
                output[key] = rows
            elif not (key in self.done_keys and key in ahead and _alike(rows, ahead[key]) and not bool(rows.any())):
                output[(ROOT, *key)] = rows
        for key, rows in ahead.items():
            if key not in doubled:
                output[key if key in self.single else ("next", *key)] = rows
        return output

    def _noted(self, shape: torch.Size, root_flags: list[Key]) -> TensorDict:
        output = TensorDict({}, batch_size=[])
        output.set_non_tensor(self.is_full_key, bool(self.is_full))
        output.set_non_tensor(self.shift_key, int(self.shift or 0))
        output.set_non_tensor(SHAPE, list(shape))
        output.set_non_tensor(ROOT_FLAGS, [list(key) for key in root_flags])
        return output


class Flat2TED(Names):
    """A load hook: makes steps of flat data again; the arguments are those that `TED2Flat` had, but for `done_key`, as flat data has it."""

    def __init__(
        self,
        done_key: str | Key = "done",
        shift_key: str = "shift",
        is_full_key: str = "is_full",
        done_keys: Sequence[str | Key] = DEFAULT_DONE_KEYS,
        reward_keys: Sequence[str | Key] = ("reward",),
    ) -> None:
        super().__init__(done_key, shift_key, is_full_key, done_keys, reward_keys)

    def __call__(self, data: TensorDictBase, out: TensorDictBase | None = None) -> TensorDictBase:
        """The steps `[T, *lanes]` in the order of their slots, written into `out`, if it is given.

        Raises:
            LayoutError: `data` is no flat data.
        """
        shape = torch.Size(plain_entry(data, SHAPE))
        oldest = int(plain_entry(data, self.shift_key)) if plain_entry(data, self.is_full_key) else 0
        ends = ends_of(data, self.done_key)
        # A step's observation comes behind those of all steps before it and the last ones of all episodes before its own.
        place = torch.arange(ends.numel(), device="cpu") + ends.cumsum(0) - ends.to(torch.int64)
        built = TensorDict({}, batch_size=shape)
        for name, rows in tensors_of(data):
            if name == (CUTS,):
                continue
            if rows.shape[0] != ends.numel():
                built[name] = _by_slot(rows[place], shape, oldest)
                built[("next", *name)] = _by_slot(rows[place + 1], shape, oldest)
            else:
                where = name[1:] if name[0] == ROOT else ("next", *name) if name in self.single else name
                built[where] = _by_slot(rows, shape, oldest)
        for name in self._root_flags(data):
            if built.get(name, None) is None and built.get(("next", *name), None) is not None:
                built[name] = torch.zeros_like(built[("next", *name)])
        return built if out is None else out.update_(built)

    def _root_flags(self, data: TensorDictBase) -> list[Key]:
        """The flags that steps had beside `next`; those of `next`, if nothing tells."""
        if data.get(ROOT_FLAGS, None) is None:
            return sorted(self.done_keys)
        return [tuple(name) for name in plain_entry(data, ROOT_FLAGS)]


def ends_of(data: TensorDictBase, done_key: str | Key = "done") -> Tensor:
    """The last steps of episodes in flat data, bool `[steps]`.

    Raises:
        LayoutError: `data` is no flat data.
    """
    shape = torch.Size(plain_entry(data, SHAPE))
    done = data.get(done_key, None)
    if done is None:
        raise LayoutError(f"done_key ({key_name(_key(done_key))}) must be an entry of data; got {_names(data)}")
    ends = _any(done)
    if shape[0]:
        ends.view(-1, shape[0])[:, -1] = True
    cuts = data.get(CUTS, None)
    return ends if cuts is None else ends | cuts


def plain_entry(data: TensorDictBase, key: str) -> Any:
    """What data says under `key` that is no tensor.

    Raises:
        LayoutError: nothing.
    """
    value = data.get(key, None)
    if value is None:
        raise LayoutError(f"data must be what TED2Flat made; it has no entry {key}: got {_names(data)}")
    return value.data if is_non_tensor(value) else value.tolist() if isinstance(value, Tensor) else value


def tensors_of(data: TensorDictBase) -> Iterator[tuple[Key, Tensor]]:
    """The tensors of data, by nested key."""
    for key, value in data.items(True, True):
        if isinstance(value, Tensor):
            yield _key(key), value


def notes_of(data: TensorDictBase, prefix: Key = ()) -> Iterator[tuple[Key, Any]]:
    """What data says that is no tensor, by nested key."""
    for name in data.keys():  # noqa: SIM118 - not in tensordict
        value = data.get(name)
        if is_non_tensor(value):
            yield (*prefix, name), value.data
        elif isinstance(value, TensorDictBase):
            yield from notes_of(value, (*prefix, name))
        elif not isinstance(value, Tensor):
            yield (*prefix, name), value


def _require_steps(data: Any, done_key: str | Key) -> None:
    if not isinstance(data, TensorDictBase) or data.get("next", None) is None:
        raise LayoutError(
            f"data ({type(data).__name__}) must be a TensorDict of steps, with what they led to under next"
        )
    if data.get(done_key, None) is None:
        raise LayoutError(f"done_key ({key_name(_key(done_key))}) must be an entry of data; got {_names(data)}")
    for key, value in notes_of(data):
        raise LayoutError(f"{key_name(key)} must be a tensor to be saved flat; got {type(value).__name__}")


def _by_lane(data: TensorDictBase, oldest: int) -> tuple[dict[Key, Tensor], dict[Key, Tensor]]:
    """Entries of steps, and of what they led to, `[lanes * T, …]`: lane after lane, the oldest step first."""
    steps, dims = data.shape[0], data.ndim
    lanes = math.prod(data.shape[1:])
    root: dict[Key, Tensor] = {}
    ahead: dict[Key, Tensor] = {}
    for key, values in data.items(True, True):
        rows = values.reshape(steps, lanes, *values.shape[dims:]).roll(-oldest, 0).transpose(0, 1)
        rows = rows.reshape(steps * lanes, *values.shape[dims:])
        name = _key(key)
        if name[0] == "next" and len(name) > 1:
            ahead[name[1:]] = rows
        else:
            root[name] = rows
    return root, ahead


def _by_slot(rows: Tensor, shape: torch.Size, oldest: int) -> Tensor:
    """What `_by_lane` undid: `[T, *lanes, …]`."""
    lanes = math.prod(shape[1:])
    values = rows.reshape(lanes, shape[0], *rows.shape[1:]).transpose(0, 1).roll(oldest, 0)
    return values.reshape(*shape, *rows.shape[1:])


def _lane_ends(data: TensorDictBase) -> Tensor:
    """The newest step of each lane, bool `[lanes * T]`."""
    ends = torch.zeros(data.numel(), dtype=torch.bool, device="cpu")
    if data.shape[0]:
        ends.view(-1, data.shape[0])[:, -1] = True
    return ends


def _cuts(root: dict[Key, Tensor], ahead: dict[Key, Tensor], doubled: list[Key]) -> Tensor:
    """Steps whose `next` is not the step behind them, bool `[lanes * T]`."""
    count = next(iter(root.values())).shape[0]
    cuts = torch.zeros(count, dtype=torch.bool, device="cpu")
    for key in doubled:
        if count > 1 and root[key][0].numel():
            # Bits, not numbers: NaN is kept as it is, and so is -0.0.
            cuts[:-1] |= (_bits(root[key][1:]) != _bits(ahead[key][:-1])).any(1)
    return cuts


def _bits(rows: Tensor) -> Tensor:
    """The bytes of each row, uint8 `[n, bytes]`."""
    return rows.reshape(rows.shape[0], -1).contiguous().view(torch.uint8)


def _with_last(rows: Tensor, ahead: Tensor, ends: Tensor) -> Tensor:
    """Rows `[n, …]`, with what the last step of each episode led to behind it."""
    behind = ends.cumsum(0)
    place = torch.arange(ends.numel(), device="cpu") + behind - ends.to(torch.int64)
    joined = rows.new_empty(rows.shape[0] + int(behind[-1]) if ends.numel() else 0, *rows.shape[1:])
    joined[place] = rows
    joined[place[ends] + 1] = ahead[ends]
    return joined


def _any(flags: Tensor) -> Tensor:
    """bool `[n]` of flags `[n, …]`."""
    return flags.reshape(flags.shape[0], -1).to(torch.bool).any(1)


def _alike(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and first.shape == second.shape


def _key(name: str | Key) -> Key:
    return (name,) if isinstance(name, str) else tuple(name)


def _names(data: TensorDictBase) -> list[str]:
    return [key_name(_key(key)) for key in data.keys(True, True)]
