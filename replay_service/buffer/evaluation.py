"""The truth of an expression for all trajectories at once: every column is read once, and no loop runs over trajectories.

Sums and means are computed in float64 and rounded to the column's own dtype, so that `reward.sum() == 0.1` means what it means for
the column's numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replay_service.buffer.expressions import (
    Call,
    Comparison,
    Field,
    Junction,
    Length,
    Negation,
    Node,
    Number,
    Quantifier,
    Reduction,
    of_steps,
    shown,
)
from replay_service.buffer.steps import Steps

__all__ = ["truth_of"]

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
EXTREMES = {"max": np.maximum, "min": np.minimum}


def truth_of(node: Node, steps: Steps) -> NDArray[np.bool_]:
    """Whether a predicate is true, bool `[n]`, one for each trajectory of `steps`.

    Raises:
        KeyError: an entry that is not stored; what is stored is listed.
        TypeError: an entry that holds no real numbers.
        ValueError: `first()` or `last()` of steps of several numbers, or entries of different widths compared with each other.
    """
    with np.errstate(all="ignore"):  # a NaN or an overflow is a value like any other here
        truth: NDArray[np.bool_] = _value(node, steps)
    return truth


def _value(node: Node, steps: Steps) -> Any:
    """A number, an array `[n]` per trajectory, or `[rows, k]` per step."""
    match node:
        case Number(value):
            return value
        case Length():
            return steps.segments.length
        case Field(key):
            return steps.values(key)
        case Reduction():
            return _reduced(node, steps)
        case Comparison():
            return _compared(node, steps)
        case Quantifier(how, of):
            ufunc = np.logical_or if how == "any" else np.logical_and
            return steps.segments.reduced(ufunc, _value(of, steps))
        case Junction(how, parts):
            ufunc = np.logical_or if how == "or" else np.logical_and
            truth = _value(parts[0], steps)
            for part in parts[1:]:
                truth = ufunc(truth, _fitting(_value(part, steps), truth, node))
            return truth
        case Negation(of):
            return ~_value(of, steps)
        case Call():
            return _asked(node, steps)


def _reduced(node: Reduction, steps: Steps) -> NDArray[Any]:
    values, segments = steps.values(node.of.key), steps.segments
    if node.how in EXTREMES:
        return segments.reduced(EXTREMES[node.how], values)
    if node.how in ("first", "last"):
        if values.shape[1] != 1:
            raise ValueError(
                f"{shown(node)} must be one number; got {values.shape[1]} per step: compare the steps, as in "
                f"({shown(node.of)} > 0).all()"
            )
        rows = segments.first_rows() if node.how == "first" else segments.last_rows()
        return values[:, 0][rows]
    is_float = values.dtype.kind == "f"
    total = segments.reduced(np.add, values, np.float64 if is_float else _wide(values.dtype))
    if node.how == "mean":
        total = total / (segments.length * values.shape[1])
    rounded: NDArray[Any] = total.astype(values.dtype) if is_float else total
    return rounded


def _compared(node: Comparison, steps: Steps) -> NDArray[np.bool_]:
    sides = [_value(node.left, steps), _value(node.right, steps)]
    if of_steps(node):
        sides = [
            steps.segments.spread(side)[:, None] if isinstance(side, np.ndarray) and side.ndim == 1 else side
            for side in sides
        ]
        if isinstance(sides[0], np.ndarray):
            sides[1] = _fitting(sides[1], sides[0], node)
    compared: NDArray[np.bool_] = OPERATORS[node.sign](*sides)
    return compared


def _fitting(value: Any, other: NDArray[Any], node: Node) -> Any:
    """`value`, if it has as many values per step as `other`, or one of them has one."""
    if isinstance(value, np.ndarray) and value.ndim == 2 and len({1, value.shape[1], other.shape[1]}) > 2:
        raise ValueError(
            f"{shown(node)} must compare steps of as many numbers; got {other.shape[1]} and {value.shape[1]} per step"
        )
    return value


def _asked(node: Call, steps: Steps) -> NDArray[np.bool_]:
    data = None if node.keys is None else steps.selected(node.keys)
    answers = (bool(node.function(steps.trajectory(place, data))) for place in range(len(steps.segments)))
    return np.fromiter(answers, np.bool_, len(steps.segments))


def _wide(dtype: np.dtype[Any]) -> type[np.integer[Any]]:
    """The integers in which sums are taken."""
    return np.uint64 if dtype.kind == "u" and dtype.itemsize == 8 else np.int64
