"""Transforms one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from replay_service.buffer.transforming import TransformChain
from replay_service.transforms.transform import Transform

__all__ = ["Compose"]


class Compose(Transform):
    """Several transforms as one: on the way out the first is first, on the way in the last.

    Args:
        *transforms: transforms, or functions of a batch, which have no inverse.

    Raises:
        TypeError: one of them is neither.
    """

    def __init__(self, *transforms: Any) -> None:
        self._chain = TransformChain(transforms)

    def forward(self, data: Any) -> Any:
        """The batch after the last transform."""
        return self._chain.forward(data)

    def sampled(self, data: Any, info: Mapping[Any, Any]) -> Any:
        """As `forward`, for a sample of which `info` is said."""
        return self._chain.forward(data, info)

    def inv(self, data: Any) -> Any:
        """The batch as it is stored."""
        return self._chain.inv(data)

    def append(self, transform: Any) -> None:
        """Adds a transform at the end."""
        self._chain.insert(len(self), transform)

    def insert(self, index: int, transform: Any) -> None:
        """Adds a transform before the one at `index`.

        Raises:
            IndexError: outside of what is there.
        """
        self._chain.insert(index, transform)

    @property
    def transforms(self) -> list[Any]:
        """The transforms, in their order."""
        return list(self._chain)

    @property
    def has_inverse(self) -> bool:
        """Whether one of them does anything on the way in."""
        return self._chain.has_inverse

    @property
    def reads_info(self) -> bool:
        """Whether one of them wants to see what is said of a sample."""
        return self._chain.reads_info

    @property
    def at_client(self) -> bool:
        """Whether one of them is to run at whoever samples: then all of them do."""
        return any(getattr(transform, "at_client", False) for transform in self)

    def __len__(self) -> int:
        return len(self._chain)

    def __getitem__(self, index: int) -> Any:
        return self._chain[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._chain)

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self))})"
