"""Entries under other names."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase

from replay_service.specs import Key
from replay_service.transforms.transform import Keys, Transform, copied, entry, keys_of

__all__ = ["RenameKeys"]


class RenameKeys(Transform):
    """Gives entries, or whole levels of nested entries, other names.

    Args:
        in_keys: names as stored.
        out_keys: names as sampled, one for each.
        in_keys_inv: names to be stored under, on the way in; None: records are stored as they come.
        out_keys_inv: the names that those are extended under, one for each.
        create_copy: keep the old names, too.

    Raises:
        TypeError: a key is no string and no tuple of strings.
        ValueError: there are not as many names on both sides.
    """

    def __init__(
        self,
        in_keys: Keys,
        out_keys: Keys,
        in_keys_inv: Keys | None = None,
        out_keys_inv: Keys | None = None,
        create_copy: bool = False,
    ) -> None:
        self.in_keys, self.out_keys = keys_of("in_keys", in_keys), keys_of("out_keys", out_keys)
        self.in_keys_inv = keys_of("in_keys_inv", in_keys_inv)
        self.out_keys_inv = keys_of("out_keys_inv", out_keys_inv)
        self.create_copy = create_copy
        for given, made in ((self.in_keys, self.out_keys), (self.in_keys_inv, self.out_keys_inv)):
            if len(given) != len(made):
                raise ValueError(f"names ({len(given)} old, {len(made)} new) must be as many on both sides")

    def forward(self, data: Any) -> Any:
        """The batch with `out_keys` instead of `in_keys`."""
        return self._renamed(data, self.in_keys, self.out_keys)

    def inv(self, data: Any) -> Any:
        """The batch with `in_keys_inv` instead of `out_keys_inv`."""
        return self._renamed(data, self.out_keys_inv, self.in_keys_inv)

    @property
    def has_inverse(self) -> bool:
        """Whether there are names to change on the way in."""
        return bool(self.in_keys_inv)

    def _renamed(self, data: Any, old: list[Key], new: list[Key]) -> TensorDictBase:
        made = copied(self, data)
        values = [entry(data, key) for key in old]
        # All out before the first goes in, so that two can change places.
        if not self.create_copy:
            for key in old:
                del made[key]
        for key, value in zip(new, values, strict=True):
            made.set(key, value)
        return made

    def __repr__(self) -> str:
        return f"RenameKeys({self.in_keys}, {self.out_keys})"
