"""One trajectory: the steps of one episode, as far as they are stored, with its entries as attributes."""

from __future__ import annotations

from typing import Any

from tensordict import TensorClass, TensorDict, TensorDictBase, is_tensor_collection
from torch import Tensor

from replay_service.errors import key_name
from replay_service.specs import Key, Spec

__all__ = ["NEXT", "Trajectory", "as_key", "as_steps", "entry_key", "known_entries", "trajectory_spec"]

NEXT = "next"
"""Where an entry is looked up if the root does not have it: what a step led to."""


def as_key(name: str, key: Any) -> Key:
    """`key` as a tuple of strings; nested tuples are joined.

    Raises:
        TypeError: it is no string and no tuple of strings.
    """
    parts: tuple[Any, ...] = key if isinstance(key, tuple) else (key,)
    flat = [part for inner in parts for part in (inner if isinstance(inner, tuple) else (inner,))]
    if not flat or not all(isinstance(part, str) for part in flat):
        raise TypeError(f"{name} ({key!r}) must be the name of an entry: a string or a tuple of strings")
    return tuple(flat)


def entry_key(data: TensorDictBase, key: Key) -> Key | None:
    """Where `data` has the entry `key`: at the root, else under `next`; None if nowhere."""
    # A TensorDict tells by `get` alone whether a nested key is there: a tensor on the way is not asked for more.
    return next((place for place in (key, (NEXT, *key)) if data.get(place, None) is not None), None)


def known_entries(data: TensorDictBase) -> list[str]:
    """The names of all entries that hold values, nested ones as `next.reward`."""
    return sorted(key_name(key) for key in data.keys(include_nested=True, leaves_only=True))


def as_steps(data: Any) -> TensorDictBase:
    """Steps with named entries as a TensorDict `[T, …]` that shares their memory.

    Raises:
        TypeError: the steps are a bare tensor, or objects that have no entries.
    """
    if isinstance(data, Trajectory):
        return data.data
    if isinstance(data, TensorDictBase):
        return data
    if isinstance(data, dict) and data and all(isinstance(value, Tensor | dict) for value in data.values()):
        made = TensorDict(data)
        return made.auto_batch_size_(1)
    if is_tensor_collection(data):  # a tensorclass
        return TensorDict({name: data.get(name) for name in data.keys()}, batch_size=data.batch_size)  # noqa: SIM118
    raise TypeError(
        f"data ({type(data).__name__}) must be a TensorDict, tensorclass or dict of steps, so that their entries have names"
    )


class Trajectory(TensorClass):
    """The steps of one trajectory, in order.

    An attribute or a key in brackets is looked up among the entries: at the root first, then under `next`, so that `t.reward` is
    `t.data["next", "reward"]` where no `reward` lies beside the observation. Any other index selects steps and gives a `Trajectory`;
    trajectories of different lengths make one ragged batch with `tensordict.lazy_stack`.

    Args:
        data: TensorDict `[T]` of the steps.
        batch_size: that of `data` if left out.
    """

    data: TensorDictBase

    def __post_init__(self) -> None:
        if not self.batch_size:
            self.batch_size = self.data.batch_size

    @property
    def length(self) -> int:
        """Number of steps."""
        return int(self.batch_size[-1]) if self.batch_size else 1

    @property
    def total_reward(self) -> Tensor:
        """Sum of the rewards of all steps, a scalar tensor.

        Raises:
            KeyError: there is no entry `reward`, neither at the root nor under `next`.
        """
        reward: Tensor = self["reward"].sum()
        return reward

    def get(self, key: str | Key, default: Any = None) -> Any:  # type: ignore[override]
        """The entry `key` `[T, *shape]`, at the root or under `next`; `default` if there is none."""
        place = entry_key(self.data, as_key("key", key))
        return default if place is None else self.data.get(place)

    def keys(self, *args: Any, **kwargs: Any) -> Any:
        """The keys of the steps' own TensorDict, with its arguments."""
        return self.data.keys(*args, **kwargs)

    def __getitem__(self, index: Any) -> Any:
        if not (isinstance(index, str) or (isinstance(index, tuple) and index and isinstance(index[0], str))):
            return super().__getitem__(index)
        found = self.get(index)
        if found is None:
            raise KeyError(f"key ({key_name(index)}) must be one of {known_entries(self.data)}")
        return found

    def __repr__(self) -> str:
        size = f"length={self.length}" if len(self.batch_size) == 1 else f"batch_size={list(self.batch_size)}"
        return f"Trajectory({size}, entries={known_entries(self.data)})"


_class: Any = Trajectory  # what a tensorclass adds is unknown to type checkers
_own_attribute = _class.__getattr__


def _attribute(self: Trajectory, name: str) -> Any:
    """What a tensorclass knows under that name, else the entry."""
    try:
        return _own_attribute(self, name)
    except AttributeError:
        if name.startswith("__") or name == "data":
            raise
        found = self.get(name)
        if found is None:
            raise AttributeError(f"attribute ({name}) must be one of {known_entries(self.data)}") from None
        return found


# A tensorclass replaces the __getattr__ of its body, so ours takes its place afterwards and asks it first.
_class.__getattr__ = _attribute


def trajectory_spec(spec: Spec) -> Spec:
    """The spec of a `Trajectory` around steps of the spec `spec`: what puts one together again without naming the class in code."""
    return ("tc", 1, f"{Trajectory.__module__}:{Trajectory.__qualname__}", (("data", spec),))
