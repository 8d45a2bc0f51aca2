"""The query language: `traj.reward.sum() > 100` and the like, built as data and asked of whole buffers.

traj.reward, traj["next", "reward"]          an entry of every step, at the root or else under `next`
.sum() .mean() .max() .min()                 over all its values, one number per trajectory
.first() .last()                             of its first and of its last step
traj.length, traj.total_reward               numbers of a trajectory
> >= < <= == !=                              of numbers; per step, if one of them is, and then to be reduced by
.any() .all()                                (of an entry itself too: whether it is not zero)
& | ~                                        of truths; put comparisons in parentheses
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import numpy as np
from tensordict import TensorDictBase
from torch import Tensor

from replay_service.buffer import expressions
from replay_service.buffer.evaluation import truth_of
from replay_service.buffer.expressions import (
    Comparison,
    Junction,
    Length,
    Negation,
    Node,
    Number,
    Quantifier,
    Reduction,
)
from replay_service.buffer.steps import Steps
from replay_service.buffer.trajectory import Trajectory, as_key

__all__ = [
    "Expression",
    "FieldExpression",
    "NumberExpression",
    "StepTruth",
    "TrajectoryPredicate",
    "as_predicate",
    "traj",
]


class Expression:
    """Base of everything that `traj` gives: a tree of `expressions` with Python's operators."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} must be asked of trajectories (query, filter_trajectories) to be true or false; write & | ~ instead of "
            "and, or, not and instead of chained comparisons, with parentheses around each comparison"
        )

    def __repr__(self) -> str:
        return expressions.shown(self.node)

    def to_json(self) -> list[Any]:
        """The expression as nested lists, if it is a predicate.

        Raises:
            TypeError: it is none.
        """
        raise _no_predicate(self)


class NumberExpression(Expression):
    """A number of a trajectory; comparisons make it a `TrajectoryPredicate`."""

    __hash__ = None  # type: ignore[assignment]

    def _compared(self, sign: str, other: Any) -> Any:
        node = Comparison(sign, self.node, _number_node(other))
        return StepTruth(node) if expressions.of_steps(node) else predicate_of(node)

    def __gt__(self, other: Any) -> Any:
        return self._compared(">", other)

    def __ge__(self, other: Any) -> Any:
        return self._compared(">=", other)

    def __lt__(self, other: Any) -> Any:
        return self._compared("<", other)

    def __le__(self, other: Any) -> Any:
        return self._compared("<=", other)

    def __eq__(self, other: Any) -> Any:
        return self._compared("==", other)

    def __ne__(self, other: Any) -> Any:
        return self._compared("!=", other)


class FieldExpression(NumberExpression):
    """An entry of every step; comparisons are per step and make a `StepTruth`."""

    node: expressions.Field

    def __getitem__(self, key: str | tuple[str, ...]) -> FieldExpression:
        return FieldExpression(expressions.Field((*self.node.key, *as_key("key", key))))

    def sum(self) -> NumberExpression:
        """Sum of all values."""
        return NumberExpression(Reduction("sum", self.node))

    def mean(self) -> NumberExpression:
        """Mean of all values."""
        return NumberExpression(Reduction("mean", self.node))

    def max(self) -> NumberExpression:
        """Largest of all values."""
        return NumberExpression(Reduction("max", self.node))

    def min(self) -> NumberExpression:
        """Smallest of all values."""
        return NumberExpression(Reduction("min", self.node))

    def first(self) -> NumberExpression:
        """The value of the first step that is stored."""
        return NumberExpression(Reduction("first", self.node))

    def last(self) -> NumberExpression:
        """The value of the last step that is stored."""
        return NumberExpression(Reduction("last", self.node))

    def any(self) -> TrajectoryPredicate:
        """Whether any value is not zero."""
        return predicate_of(Quantifier("any", self.node))

    def all(self) -> TrajectoryPredicate:
        """Whether no value is zero."""
        return predicate_of(Quantifier("all", self.node))


class StepTruth(Expression):
    """A truth about every step, to be reduced by `any()` or `all()`."""

    def any(self) -> TrajectoryPredicate:
        """Whether it holds for any step."""
        return predicate_of(Quantifier("any", self.node))

    def all(self) -> TrajectoryPredicate:
        """Whether it holds for every step."""
        return predicate_of(Quantifier("all", self.node))

    def __and__(self, other: Any) -> StepTruth:
        return StepTruth(_joined("and", self.node, _truth_node(other, of_steps=True)))

    def __or__(self, other: Any) -> StepTruth:
        return StepTruth(_joined("or", self.node, _truth_node(other, of_steps=True)))

    def __invert__(self) -> StepTruth:
        return StepTruth(_opposite(self.node))


class TrajectoryPredicate(Expression):
    """What is true or false of a trajectory: made by `traj`, or from a function.

    Args:
        fn: takes a `Trajectory` and says whether it is wanted.
        description: how the predicate is shown.
        keys: the entries that `fn` reads; the trajectories it is given have no others then. None: unknown, it is given all.
    """

    def __init__(
        self, fn: Callable[[Trajectory], Any], description: str = "predicate", keys: Iterable[Any] | None = None
    ) -> None:
        if not callable(fn):
            raise TypeError(f"fn ({fn!r}) must be a function of a Trajectory")
        read = None if keys is None else frozenset(as_key("keys", key) for key in keys)
        super().__init__(expressions.Call(fn, description, read))

    def required_keys(self) -> frozenset[str | tuple[str, ...]] | None:
        """The entries that are read, as they were named (a string at the root, a tuple below); None if that is unknown."""
        keys = expressions.keys_read(self.node)
        return None if keys is None else frozenset(key[0] if len(key) == 1 else key for key in keys)

    def runs_code(self) -> bool:
        """Whether a function decides, so that the predicate is not all data."""
        return expressions.has_call(self.node)

    def to_json(self) -> list[Any]:
        """The predicate as nested lists of strings and numbers, for a wire or a file.

        Raises:
            TypeError: it runs a function, and code is no data.
        """
        return expressions.to_json(self.node)

    @classmethod
    def from_json(cls, value: Any) -> TrajectoryPredicate:
        """The predicate that `to_json` wrote; nothing in it can run.

        Raises:
            ValueError: no predicate.
        """
        node = expressions.from_json(value)
        if not expressions.is_truth(node) or expressions.of_steps(node):
            raise ValueError(f"expression ({expressions.shown(node)}) must be true or false of a trajectory")
        return predicate_of(node)

    def __call__(self, trajectory: Trajectory | TensorDictBase) -> bool:
        """Whether it is true of `trajectory` `[T]`.

        Raises:
            KeyError: an entry that `trajectory` has not; what it has is listed.
        """
        return bool(truth_of(self.node, Steps.of_one(trajectory))[0])

    def __and__(self, other: Any) -> TrajectoryPredicate:
        return predicate_of(_joined("and", self.node, _truth_node(other, of_steps=False)))

    def __or__(self, other: Any) -> TrajectoryPredicate:
        return predicate_of(_joined("or", self.node, _truth_node(other, of_steps=False)))

    def __invert__(self) -> TrajectoryPredicate:
        return predicate_of(_opposite(self.node))


class TrajectoryNames:
    """The beginning of every expression: see the module."""

    @property
    def length(self) -> NumberExpression:
        """The number of steps."""
        return NumberExpression(Length())

    @property
    def total_reward(self) -> NumberExpression:
        """The sum of the entry `reward`."""
        return self["reward"].sum()

    def __getitem__(self, key: str | tuple[str, ...]) -> FieldExpression:
        return FieldExpression(expressions.Field(as_key("key", key)))

    def __getattr__(self, name: str) -> FieldExpression:
        if name.startswith("__"):  # Python's own questions, such as how to copy it
            raise AttributeError(f"traj has no attribute {name}; write traj[{name!r}] for an entry of that name")
        return self[name]

    def __repr__(self) -> str:
        return "traj"

    def to_json(self) -> NoReturn:
        """Raises TypeError: it is the beginning of an expression, no predicate."""
        raise _no_predicate(self)


traj = TrajectoryNames()
"""Names the entries of a trajectory in a query."""


def predicate_of(node: Node) -> TrajectoryPredicate:
    """The predicate around a tree."""
    made = TrajectoryPredicate.__new__(TrajectoryPredicate)
    made.node = node
    return made


def as_predicate(predicate: Any) -> TrajectoryPredicate | None:
    """What `query` was given as a predicate; None stays None.

    Raises:
        TypeError: an expression that is not true or false of a trajectory, or no function.
    """
    if predicate is None or isinstance(predicate, TrajectoryPredicate):
        return predicate
    if isinstance(predicate, Expression | TrajectoryNames):
        raise _no_predicate(predicate)
    if not callable(predicate):
        raise TypeError(
            f"predicate ({predicate!r:.80}) must be made of traj, or a function of a Trajectory; got {type(predicate).__name__}"
        )
    return TrajectoryPredicate(predicate, getattr(predicate, "__name__", "predicate"))


def _no_predicate(found: Any) -> TypeError:
    if isinstance(found, StepTruth):
        return TypeError(f"predicate ({found!r}) must be one truth per trajectory; reduce it by .any() or .all()")
    return TypeError(f"predicate ({found!r}) must be true or false; compare it, as in traj.length > 10")


def _number_node(other: Any) -> Node:
    if isinstance(other, NumberExpression):
        return other.node
    if isinstance(other, np.generic) or (isinstance(other, Tensor | np.ndarray) and _size(other) == 1):
        other = other.item()
    if not isinstance(other, bool | int | float):
        raise TypeError(
            f"other side of a comparison ({other!r:.80}) must be one number or an expression; got {type(other).__name__}"
        )
    return Number(other)


def _size(value: Tensor | np.ndarray[Any, Any]) -> int:
    return value.numel() if isinstance(value, Tensor) else value.size


def _truth_node(other: Any, *, of_steps: bool) -> Node:
    if (
        isinstance(other, Expression)
        and expressions.is_truth(other.node)
        and expressions.of_steps(other.node) == of_steps
    ):
        return other.node
    if isinstance(other, Expression):
        rule = (
            "compare it first, with parentheses"
            if not expressions.is_truth(other.node)
            else "reduce by .any() or .all() first"
        )
        raise TypeError(
            f"other side of & or | ({other!r}) must be a truth about the same {'step' if of_steps else 'trajectory'}; {rule}"
        )
    if callable(other) and not of_steps:
        return TrajectoryPredicate(other, getattr(other, "__name__", "predicate")).node
    raise TypeError(f"other side of & or | ({other!r:.80}) must be an expression; got {type(other).__name__}")


def _joined(how: str, left: Node, right: Node) -> Node:
    """A junction; one of the same kind on either side becomes part of it, so that long chains stay flat."""
    parts: list[Node] = []
    for side in (left, right):
        parts += side.parts if isinstance(side, Junction) and side.how == how else (side,)
    return Junction(how, tuple(parts))


def _opposite(node: Node) -> Node:
    return node.of if isinstance(node, Negation) else Negation(node)
