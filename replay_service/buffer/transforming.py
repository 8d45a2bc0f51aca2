"""What records go through on their way in and out of a buffer.

A transform is anything that can be called with a batch and returns one; its inverse, for the way in, is its `inv`, if it has one. Nothing
here knows a transform's class, so that functions, `replay_service.transforms` and those of other libraries all work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from tensordict import TensorDictBase, is_tensor_collection
from torch import Tensor

from replay_service.buffer.parts import BufferParts
from replay_service.structure import Rows

__all__ = ["TransformChain", "Transforming", "realign_info"]

Change = Callable[[Any], Any]
Self = TypeVar("Self", bound="Transforming")


class TransformChain:
    """Transforms one after the other; on the way in the last is first.

    It may be used by several threads. Of a transform that does not say that it is `stateful = False`, one call runs at a time.

    Args:
        transforms: the transforms.

    Raises:
        TypeError: one of them can neither be called nor has a `forward`.
    """

    def __init__(self, transforms: Iterable[Any] = ()) -> None:
        self._links: tuple[_Link, ...] = tuple(_Link(transform, invert=False) for transform in transforms)
        self._has_clients = False

    def insert(self, index: int, transform: Any, *, invert: bool = False) -> None:
        """Adds a transform before the one at `index`, or at the end; `invert` exchanges its way in and its way out.

        Raises:
            IndexError: `index` is outside of the chain.
            TypeError: as the constructor.
        """
        links = self._links
        if isinstance(index, bool) or not isinstance(index, int):
            raise TypeError(f"index ({index!r}) must be an integer; got {type(index).__name__}")
        if not -len(links) <= index <= len(links):
            raise IndexError(f"index ({index}) must be within the {len(links)} transform(s)")
        place = index + len(links) if index < 0 else index
        # A new tuple: a call that runs goes on with the chain it began with.
        self._links = (*links[:place], _Link(transform, invert), *links[place:])

    def forward(self, data: Any, info: Mapping[Any, Any] | None = None) -> Any:
        """The batch after the last transform, or after the last one that is not left to clients.

        Args:
            data: the batch.
            info: what is said of a sample, where that is not merged into it; for transforms that want to see it (`reads_info`).
        """
        for link in self._links[: len(self._links) - self.left]:
            data = link.forward(data, info)
        return data

    def sampled(self, data: Any, info: dict[Any, Any], merges: bool) -> Any:
        """As `forward`, for a sample; where it `merges` what is said of it, `info` follows."""
        rows = data.shape[0] if merges else 0
        made = self.forward(data, None if merges else info)
        if merges:
            realign_info(made, info, rows)
        return made

    def leave_to_clients(self) -> None:
        """Leaves what is to run at clients (`at_client`), and all behind it, to them from now on: called by a service."""
        self._has_clients = True

    @property
    def left(self) -> int:
        """How many transforms, the last ones, are left to clients."""
        if not self._has_clients:
            return 0
        first = next((place for place, link in enumerate(self._links) if link.at_client), len(self._links))
        return len(self._links) - first

    def for_clients(self) -> TransformChain:
        """What clients run on what they get."""
        chain = TransformChain()
        chain._links = self._links[len(self._links) - self.left :]
        return chain

    @property
    def reads_info(self) -> bool:
        """Whether a transform wants to see what is said of a sample."""
        return any(link.reads_info for link in self._links)

    def inv(self, data: Any) -> Any:
        """The batch as it is stored."""
        for link in reversed(self._links):
            data = link.inverse(data)
        return data

    @property
    def has_inverse(self) -> bool:
        """Whether a transform does anything on the way in."""
        return any(link.has_inverse for link in self._links)

    def __len__(self) -> int:
        return len(self._links)

    def __bool__(self) -> bool:
        """Whether `forward` does anything."""
        return len(self._links) > self.left

    def __getitem__(self, index: int) -> Any:
        return self._links[index].transform

    def __iter__(self) -> Iterator[Any]:
        return (link.transform for link in self._links)

    def __repr__(self) -> str:
        return f"TransformChain({', '.join(map(repr, self))})"


class _Link:
    """One transform, and which of its two ways is which."""

    def __init__(self, transform: Any, invert: bool) -> None:
        if not callable(transform) and not callable(getattr(transform, "forward", None)):
            raise TypeError(f"transform must be a function or have a forward; got {type(transform).__name__}")
        self.transform = transform
        self.invert = invert
        self._lock = _lock_for(transform)

    @property
    def at_client(self) -> bool:
        """Whether it is to run at whoever samples."""
        return not self.invert and bool(getattr(self.transform, "at_client", False))

    @property
    def has_inverse(self) -> bool:
        """Whether it does anything on the way in."""
        if self.invert:
            return True
        return callable(getattr(self.transform, "inv", None)) and bool(getattr(self.transform, "has_inverse", True))

    @property
    def reads_info(self) -> bool:
        """Whether it has a `sampled(data, info)` for its way out."""
        return not self.invert and bool(getattr(self.transform, "reads_info", False))

    def forward(self, data: Any, info: Mapping[Any, Any] | None = None) -> Any:
        """The way out."""
        if info and self.reads_info:
            return self._run(lambda batch: self.transform.sampled(batch, info), data)
        return self._run(self._back() if self.invert else self._ahead(), data)

    def inverse(self, data: Any) -> Any:
        """The way in."""
        return self._run(self._ahead() if self.invert else self._back(), data)

    def _ahead(self) -> Change:
        # A module is called, not its `forward`: its hooks belong to it.
        found: Change = self.transform if callable(self.transform) else self.transform.forward
        return found

    def _back(self) -> Change | None:
        return getattr(self.transform, "inv", None)

    def _run(self, change: Change | None, data: Any) -> Any:
        if change is None:
            return data
        with self._lock:
            made = change(data)
        if made is None:
            raise TypeError(f"transform ({_named(self.transform)}) must return the batch; got None")
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {"transform": self.transform, "invert": self.invert}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.transform, self.invert = state["transform"], state["invert"]
        self._lock = _lock_for(self.transform)


class Transforming(BufferParts):
    """Keeps a buffer's transforms and runs them, outside the buffer's lock."""

    _transforms: TransformChain

    @property
    def transform(self) -> TransformChain:
        """The transforms: their number, and each of them by its place."""
        return self._transforms

    def append_transform(self: Self, transform: Any, *, invert: bool = False) -> Self:
        """Adds a transform behind the others; records that are stored already stay as they are. Returns the buffer.

        Args:
            transform: an object with `forward` and perhaps `inv`, or a function of a batch. Samples and records read by index go through
                `forward`, what is written through `inv`, the last transform first.
            invert: exchange the two ways: then a function is run on what is written.

        Raises:
            TypeError: it is neither.
        """
        return self.insert_transform(len(self._transforms), transform, invert=invert)

    def insert_transform(self: Self, index: int, transform: Any, *, invert: bool = False) -> Self:
        """As `append_transform`, before the transform at `index`.

        Raises:
            IndexError: `index` is outside of what is there.
        """
        with self.lock:
            self._transforms.insert(index, transform, invert=invert)
        return self

    def _take_transforms(self, transform: Any, factory: Callable[[], Any] | None) -> None:
        """Begins with the transforms of the constructor."""
        if transform is not None and factory is not None:
            raise ValueError("transform and transform_factory must not be given together")
        if factory is not None and not callable(factory):
            raise TypeError(f"transform_factory must be a function; got {type(factory).__name__}")
        given = transform if factory is None else factory()
        parts = () if given is None else given if isinstance(given, list | tuple) else (given,)
        self._transforms = TransformChain(parts)

    def _inverted(self, data: Any) -> Any:
        """Records as they are to be stored, of records as they were handed over, which stay as they are."""
        chain = self._transforms
        if not chain.has_inverse:
            return data
        if isinstance(data, Rows):
            data = data.build()
        if isinstance(data, list) and data and all(map(is_tensor_collection, data)):
            return [chain.inv(record.clone(False)) for record in data]
        return chain.inv(data.clone(False) if is_tensor_collection(data) else data)


def realign_info(data: Any, info: dict[Any, Any], rows: int) -> None:
    """Lets `info`, merged into a batch of `rows` rows before transforms, follow the batch `data` that came of them.

    Entries that the batch still has are taken from it, so that they stay aligned if rows were left out or moved. Those that are no stored
    entries and that a transform has left out come back if there are still as many rows; otherwise nobody knows whose they are.
    """
    if not isinstance(data, TensorDictBase) or not data.ndim:
        return
    for name, value in list(info.items()):
        joined = torch.stack(value, 1) if isinstance(value, tuple) else value
        if not isinstance(joined, Tensor) or not joined.ndim or joined.shape[0] != rows:
            continue
        present = data.get(name, None)
        if present is not None:
            info[name] = present.unbind(-1) if isinstance(value, tuple) else present
        elif data.shape[0] != rows:
            del info[name]
        elif isinstance(name, str):
            data.set(name, joined)


def _lock_for(transform: Any) -> AbstractContextManager[Any]:
    # What says nothing of itself may have state. Reentrant: a transform may be in the chain twice, or hold itself.
    return threading.RLock() if getattr(transform, "stateful", True) else nullcontext()


def _named(transform: Any) -> str:
    return getattr(transform, "__name__", type(transform).__name__)
