"""Expressions over trajectories as data: a frozen tree that can be compared, shown, sent as JSON and evaluated, but runs no code.

    Number(100)                                  a constant
    Field(("next", "reward"))                    an entry of every step
    Length()                                     the number of steps
    Reduction("sum", Field(…))                   one number per trajectory
    Comparison(">", left, right)                 true or false: per step if a side is, else per trajectory
    Quantifier("any", step by step)              per trajectory
    Junction("and", (…, …)), Negation(…)         of truths that belong both to steps, or both to trajectories
    Call(function, description, keys)            code of the caller; the only node that has no JSON

`queries` are built by `query.traj`; `evaluation` gives the truth for all trajectories at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from replay_service.specs import Key

__all__ = [
    "COMPARISONS",
    "JUNCTIONS",
    "QUANTIFIERS",
    "REDUCTIONS",
    "Call",
    "Comparison",
    "Field",
    "Junction",
    "Length",
    "Negation",
    "Node",
    "Number",
    "Quantifier",
    "Reduction",
    "from_json",
    "has_call",
    "is_truth",
    "keys_read",
    "of_steps",
    "shown",
    "to_json",
]

COMPARISONS = (">", ">=", "<", "<=", "==", "!=")
REDUCTIONS = ("sum", "mean", "max", "min", "first", "last")
QUANTIFIERS = ("any", "all")
JUNCTIONS = {"and": " & ", "or": " | "}
MOST_NODES = 10_000
DEEPEST = 100
"""Bounds of an expression that comes from outside; chains of `&` and `|` are one level deep, however long."""


@dataclass(frozen=True, slots=True)
class Number:
    """A constant."""

    value: bool | int | float


@dataclass(frozen=True, slots=True)
class Field:
    """An entry of every step, looked up at the root, then under `next`."""

    key: Key


@dataclass(frozen=True, slots=True)
class Length:
    """The number of steps of a trajectory."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """One number per trajectory: one of `REDUCTIONS` over all values of a field."""

    how: str
    of: Field


@dataclass(frozen=True, slots=True)
class Comparison:
    """One of `COMPARISONS` between two numbers."""

    sign: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Quantifier:
    """Whether `any` or `all` values of something per step are true (numbers: not zero)."""

    how: str
    of: Node


@dataclass(frozen=True, slots=True)
class Junction:
    """`and` or `or` of two or more truths."""

    how: str
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Negation:
    """The opposite of a truth."""

    of: Node


@dataclass(frozen=True, slots=True)
class Call:
    """What a function of the caller says of a trajectory; `keys`: the entries it reads, None if unknown."""

    function: Callable[[Any], Any]
    description: str
    keys: frozenset[Key] | None


Node: TypeAlias = "Number | Field | Length | Reduction | Comparison | Quantifier | Junction | Negation | Call"


def is_truth(node: Node) -> bool:
    """Whether the node is true or false, not a number."""
    return isinstance(node, Comparison | Quantifier | Junction | Negation | Call)


def of_steps(node: Node) -> bool:
    """Whether the node has a value for every step, not one for the whole trajectory."""
    match node:
        case Field():
            return True
        case Comparison(_, left, right):
            return of_steps(left) or of_steps(right)
        case Junction(_, parts):
            return of_steps(parts[0])
        case Negation(of):
            return of_steps(of)
    return False


def children(node: Node) -> tuple[Node, ...]:
    """The nodes right below."""
    match node:
        case Reduction(_, of) | Quantifier(_, of) | Negation(of):
            return (of,)
        case Comparison(_, left, right):
            return (left, right)
        case Junction(_, parts):
            return parts
    return ()


def keys_read(node: Node) -> frozenset[Key] | None:
    """The entries that are read, as they are named (before the lookup); None if that is unknown."""
    if isinstance(node, Field):
        return frozenset((node.key,))
    if isinstance(node, Call):
        return node.keys
    found: frozenset[Key] = frozenset()
    for part in children(node):
        keys = keys_read(part)
        if keys is None:
            return None
        found |= keys
    return found


def has_call(node: Node) -> bool:
    """Whether a function of the caller is asked."""
    return isinstance(node, Call) or any(map(has_call, children(node)))


def shown(node: Node) -> str:
    """The node as one would write it in Python."""
    match node:
        case Number(value):
            return repr(value)
        case Field(key):
            return f"traj.{key[0]}" if len(key) == 1 and key[0].isidentifier() else f"traj[{', '.join(map(repr, key))}]"
        case Length():
            return "traj.length"
        case Reduction(how, of) | Quantifier(how, of):
            return f"{shown(of)}.{how}()"
        case Comparison(sign, left, right):
            return f"({shown(left)} {sign} {shown(right)})"
        case Junction(how, parts):
            return f"({JUNCTIONS[how].join(map(shown, parts))})"
        case Negation(of):
            return f"~{shown(of)}"
        case Call():
            return node.description


def to_json(node: Node) -> list[Any]:
    """The tree as nested lists of strings and numbers.

    Raises:
        TypeError: it holds a function.
    """
    match node:
        case Number(value):
            return ["number", value]
        case Field(key):
            return ["field", list(key)]
        case Length():
            return ["length"]
        case Reduction(how, of) | Quantifier(how, of):
            return [how, to_json(of)]
        case Comparison(sign, left, right):
            return [sign, to_json(left), to_json(right)]
        case Junction(how, parts):
            return [how, *map(to_json, parts)]
        case Negation(of):
            return ["not", to_json(of)]
        case Call():
            raise TypeError(
                f"expression ({node.description}) must be made of traj alone to be sent as data; got a function"
            )


def from_json(value: Any) -> Node:
    """The tree that `to_json` wrote; every part is checked, since it may come from outside.

    Raises:
        ValueError: no expression, or one that is larger or deeper than any that makes sense.
    """
    return _parsed(value, iter(range(MOST_NODES)), 0)


def _parsed(value: Any, budget: Iterator[int], depth: int) -> Node:
    if depth > DEEPEST or next(budget, None) is None:
        raise ValueError(f"expression must have at most {MOST_NODES} parts, nested at most {DEEPEST} deep")
    if not (isinstance(value, list) and value and isinstance(value[0], str)):
        raise ValueError(f"expression must be a list that begins with its kind; got {value!r:.80}")
    kind, *rest = value
    if kind == "number" and len(rest) == 1 and isinstance(rest[0], bool | int | float):
        return Number(rest[0])
    if kind == "field" and len(rest) == 1 and _is_key(rest[0]):
        return Field(tuple(rest[0]))
    if kind == "length" and not rest:
        return Length()
    node = _branch(kind, [_parsed(part, budget, depth + 1) for part in rest if isinstance(part, list)])
    if node is None or len(children(node)) != len(rest):
        raise ValueError(f"expression must be one that traj can build; got {value!r:.80}")
    return node


def _branch(kind: str, parts: list[Node]) -> Node | None:
    """The node of that kind over `parts`, or None if they do not fit together."""
    if kind in JUNCTIONS and len(parts) > 1 and all(is_truth(part) for part in parts):
        return Junction(kind, tuple(parts)) if len({of_steps(part) for part in parts}) == 1 else None
    if kind in COMPARISONS and len(parts) == 2 and not any(map(is_truth, parts)):
        return None if all(isinstance(part, Number) for part in parts) else Comparison(kind, parts[0], parts[1])
    if len(parts) != 1:
        return None
    only = parts[0]
    if kind in REDUCTIONS and isinstance(only, Field):
        return Reduction(kind, only)
    if kind in QUANTIFIERS and of_steps(only):
        return Quantifier(kind, only)
    return Negation(only) if kind == "not" and is_truth(only) else None


def _is_key(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(part, str) for part in value)
