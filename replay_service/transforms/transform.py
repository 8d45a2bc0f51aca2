"""The transform interface: what records go through on their way out of a buffer, and on their way in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from tensordict import TensorDictBase, is_tensor_collection

from replay_service.buffer.trajectory import as_key, known_entries
from replay_service.errors import key_name
from replay_service.specs import Key

__all__ = ["Keys", "Transform", "copied", "entry", "keys_of"]

Keys = str | Key | Iterable[str | Key]
"""One entry, a string or a tuple of strings, or a list of entries."""


class Transform(ABC):
    """Base of all transforms.

    A buffer calls `forward` on what is sampled or read by index, and `inv` on what is written, the last transform first. Both give a
    new TensorDict and leave the one they were handed as it is; tensors that they do not change are shared between the two.
    """

    stateful: bool = False
    """Whether calls must come one at a time; a buffer keeps them apart then, whoever samples meanwhile."""

    @abstractmethod
    def forward(self, data: Any) -> Any:
        """The batch `[B, …]` as whoever samples gets it.

        Raises:
            KeyError: an entry that it reads is missing.
            TypeError: the batch is no TensorDict.
        """

    def inv(self, data: Any) -> Any:
        """The batch as it is stored; as it is, unless a transform says otherwise."""
        return data

    @property
    def has_inverse(self) -> bool:
        """Whether `inv` does anything: then a service takes extended rows apart to hand them over."""
        return type(self).inv is not Transform.inv

    def __call__(self, data: Any) -> Any:
        """As `forward`."""
        return self.forward(data)


def keys_of(name: str, keys: Keys | None, default: Iterable[Key] = ()) -> list[Key]:
    """Entries as keys; `default` for None.

    Raises:
        TypeError: a key is no string and no tuple of strings.
        ValueError: an entry is named twice.
    """
    if keys is None:
        return list(default)
    given: Iterable[Any] = [keys] if isinstance(keys, str | tuple) else keys
    found = [as_key(name, key) for key in given]
    twice = next((key for place, key in enumerate(found) if key in found[:place]), None)
    if twice is not None:
        raise ValueError(
            f"{name} must name every entry once; got {key_name(twice)} twice: list the entries as [(…), (…)]"
        )
    return found


def copied(transform: Any, data: Any) -> TensorDictBase:
    """A TensorDict with the same tensors, to be changed by `transform`.

    Raises:
        TypeError: `data` is none.
    """
    if not is_tensor_collection(data):
        raise TypeError(
            f"data must be a TensorDict for {type(transform).__name__}; got {type(data).__name__}: pass a function that knows it instead"
        )
    shallow: TensorDictBase = data.clone(False)
    return shallow


def entry(data: Any, key: Key) -> Any:
    """The entry `key` of a batch.

    Raises:
        KeyError: it has none; what it has is listed.
    """
    value = data.get(key, None)
    if value is None:
        raise KeyError(f"key ({key_name(key)}) must be an entry of the batch; got {known_entries(data)}")
    return value
