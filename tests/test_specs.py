"""Specs: what nested data is made of, as plain values."""

from __future__ import annotations

import json
from typing import Any

import pytest

from replay_service.errors import LayoutError
from replay_service.specs import Spec, keys_of, narrowed, spec_from_json, widened, with_leaf

NESTED: Spec = (
    "td",
    2,
    (
        ("a", "t"),
        ("next", ("td", 2, (("b", "t"),))),
        ("extra", ("dict", (("c", ("tuple", (("0", "t"), ("1", "t")))),))),
    ),
)
CLASSED: Spec = ("tc", 1, "module:Class", (("x", "t"), ("pair", ("nt", "module:Pair", (("left", "t"),)))))
SPECS: list[Any] = ["t", NESTED, CLASSED, ("list", (("0", "t"),))]


def test_keys_are_in_order() -> None:
    assert keys_of(NESTED) == [("a",), ("next", "b"), ("extra", "c", "0"), ("extra", "c", "1")]
    assert keys_of(CLASSED) == [("x",), ("pair", "left")]
    assert keys_of("t") == [()]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_json_and_back(spec: Spec) -> None:
    assert spec_from_json(json.loads(json.dumps(spec))) == spec
    assert hash(spec) == hash(spec_from_json(json.loads(json.dumps(spec))))


@pytest.mark.parametrize("value", [None, 1.5, {"a": 1}, ["td", None]])
def test_what_no_spec_is_made_of(value: Any) -> None:
    with pytest.raises(LayoutError, match="spec must be"):
        spec_from_json(value)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_narrowed_and_widened_are_inverse(spec: Spec) -> None:
    assert narrowed(widened(spec), 1) == spec
    assert narrowed(spec, 0) == spec
    assert keys_of(widened(spec)) == keys_of(spec)


def test_dimensions_of_every_level() -> None:
    assert narrowed(NESTED, 1)[1] == 1
    assert narrowed(NESTED, 1)[-1][1][1][1] == 1
    assert narrowed(CLASSED, 5)[1] == 0
    assert widened(CLASSED)[1:3] == (2, "module:Class")
    assert widened(CLASSED)[-1][1] == ("pair", ("nt", "module:Pair", (("left", "t"),)))


def test_leaves_are_added() -> None:
    spec = with_leaf(with_leaf(NESTED, ("next", "new")), ("deep", "er", "leaf"))
    assert keys_of(spec) == [*keys_of(NESTED)[:2], ("next", "new"), *keys_of(NESTED)[2:], ("deep", "er", "leaf")]
    assert spec[-1][-1] == ("deep", ("td", 2, (("er", ("td", 2, (("leaf", "t"),))),)))
    assert keys_of(with_leaf(("dict", ()), ("a", "b"))) == [("a", "b")]


def test_an_existing_leaf_stays() -> None:
    assert with_leaf(NESTED, ("next", "b")) == NESTED


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        ("t", ("a",)),
        (NESTED, ("a", "b")),  # a holds numbers
        (NESTED, ("next",)),  # next holds others
        (NESTED, ("extra", "c", "2")),  # a tuple
        (CLASSED, ("y",)),
    ],
)
def test_leaves_without_a_place_are_refused(spec: Spec, key: tuple[str, ...]) -> None:
    with pytest.raises(LayoutError, match=r"key \("):
        with_leaf(spec, key)
