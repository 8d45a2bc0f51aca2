"""Specs: how named leaves are put together to the nested data a user handed over.

A spec is made of strings, integers and tuples only, so that it can be hashed, compared and written as JSON; nothing is pickled.

    "t"                                    a tensor
    ("td", dims, ((name, spec), …))        a TensorDict with `dims` batch dimensions
    ("tc", dims, "module:Class", ((…)))    a tensorclass
    ("nt", "module:Class", ((name, spec), …))
                                           a named tuple
    ("dict" | "list" | "tuple", ((name, spec), …))
"""

from __future__ import annotations

from typing import Any, TypeAlias

from replay_service.errors import LayoutError

__all__ = ["Key", "Spec", "keys_of", "narrowed", "spec_from_json", "widened", "with_leaf"]

Key: TypeAlias = tuple[str, ...]
Spec: TypeAlias = "str | tuple[Any, ...]"

TENSORDICT_KINDS = ("td", "tc")
OPEN_KINDS = ("td", "dict")
KIND_NAMES = {"tc": "a tensorclass", "nt": "a named tuple", "tuple": "a tuple", "list": "a list"}


def keys_of(spec: Spec, prefix: Key = ()) -> list[Key]:
    """The nested keys of the leaves, in their order."""
    if isinstance(spec, str):
        return [prefix]
    return [key for name, part in spec[-1] for key in keys_of(part, (*prefix, name))]


def narrowed(spec: Spec, dims: int) -> Spec:
    """The spec with `dims` leading batch dimensions fewer (more, if negative): 1 makes that of a batch that of one record."""
    if isinstance(spec, str) or dims == 0:
        return spec
    parts = tuple((name, narrowed(part, dims)) for name, part in spec[-1])
    if spec[0] in TENSORDICT_KINDS:
        return (spec[0], max(0, spec[1] - dims), *spec[2:-1], parts)
    return (*spec[:-1], parts)


def widened(spec: Spec) -> Spec:
    """The spec with one more leading batch dimension: that of a batch of such records."""
    return narrowed(spec, -1)


def with_leaf(spec: Spec, key: Key) -> Spec:
    """The spec with one more leaf under `key`; nested levels are made where they are missing, an existing leaf stays.

    Raises:
        LayoutError: a part of `key` names a tensor, which can hold nothing, or `key` names a level that holds others, or a level whose
            names are fixed (a tuple, a list, a tensorclass).
    """
    if isinstance(spec, str) or spec[0] not in OPEN_KINDS:
        kind = "a tensor" if isinstance(spec, str) else KIND_NAMES[spec[0]]
        raise LayoutError(f"key ({'.'.join(key)}) must be added to a TensorDict or dict; got {kind}")
    parts = list(spec[-1])
    head, rest = key[0], key[1:]
    place = next((i for i, (name, _) in enumerate(parts) if name == head), None)
    if place is None:
        empty: Spec = ("td", spec[1], ()) if spec[0] in TENSORDICT_KINDS else ("dict", ())
        parts.append((head, with_leaf(empty, rest) if rest else "t"))
    elif rest:
        parts[place] = (head, with_leaf(parts[place][1], rest))
    elif parts[place][1] != "t":
        raise LayoutError(
            f"key ({head}) must be a tensor among the stored entries; it holds {keys_of(parts[place][1])}"
        )
    return (*spec[:-1], tuple(parts))


def spec_from_json(value: Any) -> Spec:
    """The spec that was written as JSON: lists become tuples again.

    Raises:
        LayoutError: a value that no spec is made of.
    """
    if isinstance(value, list):
        return tuple(spec_from_json(part) for part in value)
    if isinstance(value, str | int):
        return value  # type: ignore[return-value]
    raise LayoutError(f"spec must be made of strings, integers and lists; got {type(value).__name__}")
