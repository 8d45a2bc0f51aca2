"""Transforms that change one entry after the other, each by itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from replay_service.specs import Key
from replay_service.transforms.transform import Keys, Transform, copied, entry, keys_of

__all__ = ["Entrywise"]


class Entrywise(Transform):
    """Base of transforms that read `in_keys` and write what becomes of them to `out_keys`.

    On the way in it is the other way round: `out_keys_inv`, as the caller names them, become `in_keys_inv`, as they are stored.

    Args:
        in_keys: entries to change; None takes `default`.
        out_keys: where the results go; None: in place of what was read.
        in_keys_inv: entries to write on the way in; None: none, records are stored as they come.
        out_keys_inv: the entries that they are made of; None: `in_keys_inv`.
        default: `in_keys` for None.

    Raises:
        TypeError: a key is no string and no tuple of strings.
        ValueError: there are not as many keys on both sides.
    """

    def __init__(
        self,
        in_keys: Keys | None,
        out_keys: Keys | None = None,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
        default: Iterable[Key] = (),
    ) -> None:
        self.in_keys = keys_of("in_keys", in_keys, default)
        self.out_keys = keys_of("out_keys", out_keys, self.in_keys)
        self.in_keys_inv = keys_of("in_keys_inv", in_keys_inv)
        self.out_keys_inv = keys_of("out_keys_inv", out_keys_inv, self.in_keys_inv)
        for name in ("", "_inv"):
            given, made = getattr(self, f"in_keys{name}"), getattr(self, f"out_keys{name}")
            if len(given) != len(made):
                raise ValueError(
                    f"out_keys{name} ({len(made)}) must be as many as in_keys{name}; got {len(given)} of those"
                )

    @abstractmethod
    def apply(self, value: Tensor) -> Tensor:
        """What becomes of an entry on its way out, `[B, *shape]`."""

    def undo(self, value: Tensor) -> Tensor:
        """What becomes of an entry on its way in, `[B, *shape]`."""
        raise NotImplementedError(f"{type(self).__name__} has no inverse")

    def forward(self, data: Any) -> Any:
        """The batch with `out_keys` made of `in_keys`."""
        made = copied(self, data)
        for in_key, out_key in zip(self.in_keys, self.out_keys, strict=True):
            made.set(out_key, self.apply(entry(data, in_key)))
        return made

    def inv(self, data: Any) -> Any:
        """The batch with `in_keys_inv` made of `out_keys_inv`."""
        if not self.in_keys_inv:
            return data
        made = copied(self, data)
        for in_key, out_key in zip(self.in_keys_inv, self.out_keys_inv, strict=True):
            made.set(in_key, self.undo(entry(data, out_key)))
        return made

    @property
    def has_inverse(self) -> bool:
        """Whether there are entries to change on the way in."""
        return bool(self.in_keys_inv)
