"""Storages, samplers, writers and episodic buffers by name: whatever is published, a configuration file can ask for."""

from __future__ import annotations

import collections.abc
import functools
import importlib
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tensordict import NestedKey

import replay_service
import replay_service.episodic
from deploy.errors import ConfigError
from deploy.tables import Table, near_match

__all__ = ["EPISODIC", "Kind", "available_kinds", "read_kind"]

EPISODIC = "episodic"

# Role -> where its kinds are published, and the public class that all of them descend from.
BASES: dict[str, tuple[types.ModuleType, str]] = {
    "storage": (replay_service, "Storage"),
    "sampler": (replay_service, "Sampler"),
    "writer": (replay_service, "Writer"),
    EPISODIC: (replay_service.episodic, "ReplayBuffer"),
}

SIZES = ("max_size", "max_capacity", "size", "total_size")
TRIED_SIZE = 4096
SEQUENCES = (collections.abc.Sequence, collections.abc.Iterable)


@dataclass(frozen=True)
class Kind:
    """A part of a buffer, or an episodic buffer, to be built where it lives.

    Attributes:
        role: `"storage"`, `"sampler"`, `"writer"` or `"episodic"`.
        name: public name of the class.
        parameters: keyword arguments of its constructor.
    """

    role: str
    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def factory(self) -> Callable[[], Any]:
        """A picklable callable that builds the part; it travels to the service and runs there."""
        return functools.partial(getattr(BASES[self.role][0], self.name), **self.parameters)

    def try_out(self) -> None:
        """Build the part here and drop it, so that a value its constructor refuses is found before anything is started.

        Raises:
            ConfigError: the constructor refused its parameters.
        """
        parameters = dict(self.parameters)
        if "max_capacity" in parameters:
            # A priority tree is allocated at once; its size says nothing about the other parameters.
            parameters["max_capacity"] = min(parameters["max_capacity"], 16)
        for size in ("size", "total_size"):
            if size in parameters:
                parameters[size] = min(parameters[size], TRIED_SIZE)
        # A folder is one of the machine that the service runs on, and in use while it does.
        parameters.pop("scratch_dir", None)
        try:
            getattr(BASES[self.role][0], self.name)(**parameters)
        except Exception as error:
            # Whatever a constructor raises on the file's values is the file's mistake.
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            names_key = text.split(" ", 1)[0] in parameters
            complaint = (
                f"{self.role}.{text}" if names_key else f"{self.role}.kind ({self.name!r}) cannot be built: {text}"
            )
            raise ConfigError(complaint) from error


def available_kinds(role: str) -> dict[str, type]:
    """Public classes of a role that can be built from a file, by name."""
    home, suffix = BASES[role]
    base = getattr(home, suffix)
    # Looked at by name first: touching every public name would import Ray.
    names = sorted(name for name in home.__all__ if name.endswith(suffix))
    kinds = {name: getattr(home, name) for name in names}
    return {name: kind for name, kind in kinds.items() if _is_buildable(kind, base, role)}


def read_kind(values: Any, role: str, capacity: int | None = None) -> Kind:
    """Read the table of one part and check its parameters against the constructor's signature.

    Args:
        values: the parsed table, with the key `kind`.
        role: as `Kind` has it; also the table's name.
        capacity: what a parameter `max_capacity` gets if the table leaves it out.

    Raises:
        ConfigError: no such kind, an unknown or a missing parameter, a value of the wrong type.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{role} ({values!r}) must be a table; got {type(values).__name__}")
    kinds = available_kinds(role)
    name = values.get("kind")
    if name is None:
        raise ConfigError(f"{role}.kind (missing) must be one of {', '.join(kinds)}")
    if not isinstance(name, str) or name not in kinds:
        guess = near_match(name, kinds)
        raise ConfigError(f"{role}.kind ({name!r}) must be one of {', '.join(kinds)}; got {type(name).__name__}{guess}")
    signature = _signature(kinds[name])
    written = {_name_in_file(role, parameter): parameter for parameter in signature}
    # Both names of a parameter that has two are understood; the file's own one is offered first.
    targets = {**written, **{parameter: parameter for parameter in signature}}
    table = Table(values, role, ["kind", *targets])
    parameters: dict[str, Any] = {}
    for key in values:
        if key == "kind":
            continue
        if targets[key] in parameters:
            twin = next(other for other in values if other != key and targets.get(other) == targets[key])
            raise table.refuse(key, f"left out where {role}.{twin} is given: both mean the same")
        parameters[targets[key]] = _converted(table, key, signature[targets[key]])
    if "max_capacity" in signature and capacity is not None:
        parameters.setdefault("max_capacity", capacity)
    for key, parameter in written.items():
        if signature[parameter].default is inspect.Parameter.empty and parameter not in parameters:
            raise ConfigError(f"{role}.{key} (missing) must be given for {name}")
    return Kind(role, name, types.MappingProxyType(parameters))


def _name_in_file(role: str, parameter: str) -> str:
    """What a constructor's parameter is called in the file."""
    return "capacity" if (role, parameter) == ("storage", "max_size") else parameter


def _is_buildable(kind: Any, base: type, role: str) -> bool:
    if not inspect.isclass(kind) or not issubclass(kind, base) or inspect.isabstract(kind):
        return False
    if kind is base and role != EPISODIC:
        return False
    return all(parameter.kind is not parameter.VAR_POSITIONAL for parameter in _signature(kind).values())


def _signature(kind: type) -> dict[str, inspect.Parameter]:
    """Constructor parameters by name, annotations resolved where they can be; `**kwargs` are left out."""
    try:
        hints = typing.get_type_hints(kind.__init__)  # type: ignore[misc]
    except NameError:
        # A name imported for type checkers only: such a constructor checks its values itself.
        hints = {}
    # Where `__new__` decides what is made, `__init__` still says of what.
    init: Any = kind.__init__  # type: ignore[misc]
    source = functools.partial(init, None) if "__new__" in _written_names(kind) else kind
    parameters = inspect.signature(source).parameters.values()
    return {p.name: p.replace(annotation=hints.get(p.name, Any)) for p in parameters if p.kind is not p.VAR_KEYWORD}


def _written_names(kind: type) -> set[str]:
    """Names that the class or one of its bases defines, those of every object apart."""
    return {name for base in kind.__mro__ if base is not object for name in vars(base)}


def _converted(table: Table, key: str, parameter: inspect.Parameter) -> Any:
    value = table.value(key)
    if parameter.name in SIZES and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise table.refuse(key, "a positive integer")
    choices = _choices(parameter.annotation)
    for choice in choices:
        fits, converted = _as_type(value, choice)
        if fits:
            return converted
    raise table.refuse(key, " or ".join(sorted({_type_name(choice) for choice in choices if choice is not type(None)})))


def _choices(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union; integers first, so that 3 stays an int where both int and float will do."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(sorted(typing.get_args(annotation), key=lambda choice: choice is float))
    return (annotation,)


def _as_type(value: Any, wanted: Any) -> tuple[bool, Any]:
    """(whether `value` can stand for the type, the value as that type). An array of strings is one nested key."""
    if wanted is Any:
        return True, _nested(value)
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool), value
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool), value
    if wanted in (bool, str):
        return isinstance(value, wanted), value
    if wanted in (torch.device, Path):
        return isinstance(value, str), value
    if typing.get_origin(wanted) is collections.abc.Callable:
        return _function(value)
    if wanted is NestedKey:
        parts = value if isinstance(value, list) and value else [value]
        return all(isinstance(part, str) for part in parts), _nested(value)
    if wanted is torch.dtype:
        dtype = getattr(torch, value, None) if isinstance(value, str) else None
        return isinstance(dtype, torch.dtype), dtype
    origin = typing.get_origin(wanted) or wanted
    if origin is typing.Literal:
        return value in typing.get_args(wanted), value
    if (inspect.isclass(origin) and issubclass(origin, tuple | list)) or origin in SEQUENCES:
        return isinstance(value, list), _nested(value)
    return False, value


def _function(value: Any) -> tuple[bool, Any]:
    """The function that `"module:name"` names; it is imported here, and by name where it is used."""
    module, colon, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not (module and colon and name):
        return False, value
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return False, value
    return callable(found), found


def _nested(value: Any) -> Any:
    """`["next", "done"]` as the tuple that names a nested key, `[["next", "done"], …]` as a list of such keys."""
    if not isinstance(value, list):
        return value
    if all(isinstance(part, str) for part in value):
        return tuple(value)
    return [_nested(part) for part in value]


def _type_name(wanted: Any) -> str:
    if wanted is torch.dtype:
        return "the name of a torch dtype"
    if wanted is NestedKey:
        return "a key or an array of its parts"
    if inspect.isclass(wanted) and wanted in (int, float, bool, str):
        return str(wanted.__name__)
    if wanted in (torch.device, Path):
        return "str"
    origin = typing.get_origin(wanted) or wanted
    if origin is collections.abc.Callable:
        return "the name of a function, 'module:name', that can be imported"
    if origin is typing.Literal:
        return " or ".join(map(repr, typing.get_args(wanted)))
    if (inspect.isclass(origin) and issubclass(origin, tuple | list)) or origin in SEQUENCES:
        return "an array"
    return "an object that only Python can build"
