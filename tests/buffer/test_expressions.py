from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay_service.buffer.expressions import (
    COMPARISONS,
    REDUCTIONS,
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
    from_json,
    has_call,
    is_truth,
    keys_read,
    of_steps,
    shown,
    to_json,
)

FIELDS = st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=3).map(lambda key: Field(tuple(key)))
NUMBERS = st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False)).map(Number)
PER_TRAJECTORY = st.one_of(st.builds(Reduction, st.sampled_from(REDUCTIONS), FIELDS), st.just(Length()))
SIGNS = st.sampled_from(COMPARISONS)


def joined(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(parts, min_size=2, max_size=3).map(tuple)
    return st.one_of(st.builds(Junction, st.sampled_from(("and", "or")), several), st.builds(Negation, parts))


STEP_TRUTHS = st.recursive(st.builds(Comparison, SIGNS, FIELDS, st.one_of(NUMBERS, FIELDS, PER_TRAJECTORY)), joined)
TRUTHS = st.recursive(
    st.one_of(
        st.builds(Comparison, SIGNS, PER_TRAJECTORY, st.one_of(NUMBERS, PER_TRAJECTORY)),
        st.builds(Quantifier, st.sampled_from(("any", "all")), st.one_of(FIELDS, STEP_TRUTHS)),
    ),
    joined,
)


@settings(max_examples=200, deadline=None)
@given(st.one_of(TRUTHS, STEP_TRUTHS, PER_TRAJECTORY))
def test_json_gives_the_same_tree(node: Node) -> None:
    assert from_json(json.loads(json.dumps(to_json(node)))) == node
    hash(node)
    assert not has_call(node)
    assert keys_read(node) is not None
    assert isinstance(shown(node), str)


@settings(max_examples=200, deadline=None)
@given(TRUTHS, STEP_TRUTHS)
def test_kinds(truth: Node, step_truth: Node) -> None:
    assert is_truth(truth)
    assert not of_steps(truth)
    assert is_truth(step_truth)
    assert of_steps(step_truth)


JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.sampled_from(["sum", "and", ">", "field"])
    ),
    lambda inner: st.lists(inner, max_size=4),
)


@settings(max_examples=200, deadline=None)
@given(JSON)
def test_nothing_else_is_read(value: Any) -> None:
    try:
        node = from_json(value)
    except ValueError:
        return
    assert to_json(node) == value


FIELD, LENGTH, ONE = ["field", ["x"]], ["length"], ["number", 1]


@pytest.mark.parametrize(
    "value",
    [
        "length",
        [],
        [5],
        ["eval", "1"],
        ["field", []],
        ["field", "x"],
        ["number", "1"],
        ["number", None],
        ["length", 1],
        ["sum", LENGTH],
        ["sum", FIELD, FIELD],
        ["sum", FIELD, 3],
        [">", FIELD],
        [">", ONE, ONE],
        [">", [">", FIELD, ONE], ONE],
        ["any", LENGTH],
        ["any", [">", LENGTH, ONE]],
        ["not", FIELD],
        ["and", [">", LENGTH, ONE]],
        ["and", [">", LENGTH, ONE], [">", FIELD, ONE]],
        ["and", LENGTH, LENGTH],
    ],
)
def test_refused_json(value: Any) -> None:
    with pytest.raises(ValueError, match="expression must"):
        from_json(value)


def test_larger_than_makes_sense() -> None:
    deep: Any = [">", LENGTH, ONE]
    for _ in range(200):
        deep = ["not", deep]
    wide = ["and", *[[">", LENGTH, ONE]] * 20_000]
    for value in (deep, wide):
        with pytest.raises(ValueError, match="at most 10000 parts, nested at most 100 deep"):
            from_json(value)


def test_functions_are_no_data() -> None:
    call = Call(len, "wanted", None)
    node = Junction("and", (Comparison(">", Length(), Number(1)), call))
    assert has_call(node)
    assert keys_read(node) is None
    assert keys_read(Call(len, "wanted", frozenset({("a",)}))) == {("a",)}
    with pytest.raises(TypeError, match=r"expression \(wanted\) must be made of traj alone"):
        to_json(node)
