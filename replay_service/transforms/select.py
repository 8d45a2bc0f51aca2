"""Only some entries."""

from __future__ import annotations

from typing import Any

from replay_service.specs import Key
from replay_service.transforms.transform import Transform, copied, entry, keys_of

__all__ = ["SelectKeys"]


class SelectKeys(Transform):
    """Leaves out all entries but some. What a buffer says of its sample (`index`, `priority_weight`…) comes along in any case.

    With `append_transform(…, invert=True)` other entries are not even stored.

    Args:
        *keys: the entries, or whole levels of nested entries, to keep.

    Raises:
        TypeError: a key is no string and no tuple of strings, or there is none.
    """

    def __init__(self, *keys: str | Key) -> None:
        if not keys:
            raise TypeError("keys must name at least one entry to keep")
        self.keys = keys_of("keys", list(keys))

    def forward(self, data: Any) -> Any:
        """The batch with `keys` alone."""
        made = copied(self, data)
        for key in self.keys:
            entry(data, key)
        return made.select(*self.keys)

    def __repr__(self) -> str:
        return f"SelectKeys({self.keys})"
