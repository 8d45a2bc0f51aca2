"""The names of a batch: what is given for them is converted once, when it comes in, and found by attribute or item."""

from __future__ import annotations

import copy as copying
from collections.abc import ItemsView, KeysView, Mapping, Sequence, ValuesView
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from replay_service.episodic.batch_joining import stacked
from replay_service.episodic.batch_leaves import NUMERIC_KINDS, Nested, as_leaf, is_mapping_sequence
from replay_service.episodic.batch_printing import described
from replay_service.episodic.refusals import RefusedTypeError

__all__ = ["NamedValues"]

Content = dict[str, Any]
Self = TypeVar("Self", bound="NamedValues")


class NamedValues(Nested):
    """Converted values by name; see `Batch`, which adds rows to them. The names of methods are reached by item only."""

    __slots__ = ("_content",)
    _content: Content

    def __init__(
        self,
        batch_dict: Mapping[str, Any]
        | NamedValues
        | Sequence[Mapping[str, Any] | NamedValues]
        | np.ndarray
        | None = None,
        copy: bool = False,
        **kwargs: Any,
    ) -> None:
        content: Content = {}
        if batch_dict is not None:
            if isinstance(batch_dict, NamedValues | Mapping):
                content.update((_name(name), self._converted(value)) for name, value in batch_dict.items())
            elif is_mapping_sequence(batch_dict):
                content.update(stacked(map(type(self), batch_dict), 0, self.wrap))
            elif not isinstance(batch_dict, list | tuple | np.ndarray) or len(batch_dict):
                raise RefusedTypeError(
                    f"batch_dict must be a dict, a Batch or a sequence of these; got {type(batch_dict).__name__}"
                )
        for name, value in kwargs.items():
            content[name] = self._converted(value)
        object.__setattr__(self, "_content", copying.deepcopy(content) if copy else content)

    @classmethod
    def wrap(cls: type[Self], content: Content) -> Self:
        """A batch of `content` as it is: nothing is checked or converted, and the dict becomes the batch's own."""
        batch = cls.__new__(cls)
        object.__setattr__(batch, "_content", content)
        return batch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_content":  # the second: asked for before it is there, while unpickling
            raise AttributeError(name)
        try:
            return self._content[name]
        except KeyError:
            raise AttributeError(f"name ({name!r}) must be one of {list(self._content)}; got another") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(type(self), name):
            raise AttributeError(f"name ({name!r}) must not be that of a method; use batch[{name!r}] = … instead")
        self._content[name] = self._converted(value)

    def __delattr__(self, name: str) -> None:
        if name not in self._content:
            raise AttributeError(f"name ({name!r}) must be one of {list(self._content)}; got another")
        del self._content[name]

    def __getitem__(self, name: Any) -> Any:
        return self._content[name]

    def __setitem__(self, name: Any, value: Any) -> None:
        self._content[_name(name)] = self._converted(value)

    def __delitem__(self, name: str) -> None:
        del self._content[name]

    def __contains__(self, name: object) -> bool:
        return name in self._content

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *self._content})

    def keys(self) -> KeysView[str]:
        """The names, in order."""
        return self._content.keys()

    def values(self) -> ValuesView[Any]:
        """Leaves and nested batches, in order."""
        return self._content.values()

    def items(self) -> ItemsView[str, Any]:
        """(name, leaf or nested batch), in order."""
        return self._content.items()

    def get(self, name: str, default: Any = None) -> Any:
        """The value under `name`, or `default`."""
        return self._content.get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        """Take the value under `name` out; `default` or KeyError where there is none."""
        return self._content.pop(name, *default)

    def update(self, batch: Mapping[str, Any] | NamedValues | None = None, **kwargs: Any) -> None:
        """Set several values; raises as the constructor does, and then nothing was set."""
        self._content.update(type(self)(batch, **kwargs).items())

    def to_dict(self) -> dict[str, Any]:
        """The values in dicts, nested ones too; arrays by reference."""
        return {name: value.to_dict() if isinstance(value, NamedValues) else value for name, value in self.items()}

    def __repr__(self) -> str:
        return described(type(self).__name__, self.items())

    def __copy__(self) -> NamedValues:
        return self.wrap(dict(self._content))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).wrap, (self._content,)

    def _become(self: Self, other: NamedValues) -> Self:
        object.__setattr__(self, "_content", dict(other.items()))
        return self

    @classmethod
    def _converted(cls, value: Any) -> Any:
        """What `value` is kept as: a leaf or a nested batch."""
        if isinstance(value, Nested | Tensor) or (type(value) is np.ndarray and value.dtype.kind in NUMERIC_KINDS):
            return value
        if isinstance(value, Mapping):
            return cls(value)
        if is_mapping_sequence(value):
            return cls.wrap(stacked([cls(entry) for entry in value], 0, cls.wrap))
        return as_leaf(value)


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise RefusedTypeError(f"name ({name!r}) must be a str; got {type(name).__name__}")
    return name
