"""Rows: taking nested records apart and putting them together again."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, TensorDict, lazy_stack, tensorclass

from replay_service.errors import LayoutError
from replay_service.specs import narrowed
from replay_service.structure import Leaf, Rows, build, flatten_rows, folded, leaf_of, row_of

Pair = namedtuple("Pair", ["left", "right"])


@tensorclass
class Step:
    observation: torch.Tensor
    extra: TensorDict


FORMS: list[tuple[str, Any]] = [
    ("tensor", torch.arange(6).view(3, 2)),
    ("TensorDict", TensorDict({"a": torch.zeros(3), "next": {"b": torch.ones(3, 2)}}, [3])),
    ("two batch dimensions", TensorDict({"a": torch.zeros(3, 4, 2)}, [3, 4])),
    ("tensorclass", Step(torch.zeros(3, 2), TensorDict({"x": torch.ones(3)}, [3]), batch_size=[3])),
    ("dict", {"a": torch.zeros(3), "d": {"b": torch.ones(3)}}),
    ("tuple", (torch.zeros(3), torch.ones(3, 2))),
    ("list", [torch.zeros(3), torch.ones(3)]),
    ("named tuple", Pair(torch.zeros(3), {"x": torch.ones(3)})),
    (
        "mixture",
        {"td": TensorDict({"a": torch.zeros(3)}, [3]), "t": (torch.zeros(3), Pair(torch.ones(3), torch.ones(3)))},
    ),
    ("lazy stack", lazy_stack([TensorDict({"a": torch.zeros(2)}, []) for _ in range(3)])),
]


@pytest.mark.parametrize("data", [form for _, form in FORMS], ids=[name for name, _ in FORMS])
def test_apart_and_together(data: Any) -> None:
    rows = flatten_rows(data)
    assert len(rows) == rows.count == 3
    again = rows.build()
    assert _same(again, data)
    record = build_one(rows, 1)
    assert _same(record, _row(data, 1))


def build_one(rows: Rows, place: int) -> Any:
    return build(narrowed(rows.spec, 1), [tensor[place] for tensor in rows.tensors], ())


def test_leaves_are_named_in_order() -> None:
    rows = flatten_rows({"b": torch.zeros(2, 3), "a": {"c": torch.zeros(2, dtype=torch.bool)}, "t": (torch.zeros(2),)})
    assert rows.leaves() == (
        Leaf(("b",), torch.float32, (3,)),
        Leaf(("a", "c"), torch.bool, ()),
        Leaf(("t", "0"), torch.float32, ()),
    )
    assert [leaf.row_bytes for leaf in rows.leaves()] == [12, 1, 4]
    assert [str(leaf) for leaf in rows.leaves()] == ["b: float32[3]", "a.c: bool[]", "t.0: float32[]"]
    assert str(leaf_of((), torch.zeros(2, 3))) == "value: float32[3]"


def test_rows_are_views() -> None:
    data = TensorDict({"a": torch.zeros(4)}, [4])
    rows = flatten_rows(data)[1:3]
    rows.get("a").fill_(7)
    assert data["a"].tolist() == [0, 7, 7, 0]
    assert (len(rows), rows.build().batch_size) == (2, (2,))


def test_slices_count_as_python_does() -> None:
    rows = flatten_rows(torch.arange(5))
    assert [len(rows[part]) for part in (slice(0, 0), slice(3, 99), slice(-2, None))] == [0, 2, 2]


def test_get_lists_what_exists() -> None:
    rows = flatten_rows({"a": torch.zeros(2), "n": {"b": torch.ones(2)}})
    assert rows.get(("n", "b")).tolist() == [1, 1]
    with pytest.raises(KeyError, match=r"n\.c.*n\.b"):
        rows.get(("n", "c"))


def test_one_record() -> None:
    rows = row_of({"a": torch.tensor(3), "n": TensorDict({"b": torch.ones(2)}, [])})
    assert len(rows) == 1
    assert rows.leaves() == (Leaf(("a",), torch.int64, ()), Leaf(("n", "b"), torch.float32, (2,)))
    assert rows.build()["n"].batch_size == (1,)


def test_folding_leading_dimensions() -> None:
    rows = flatten_rows({"a": torch.arange(12).view(3, 4), "b": torch.zeros(3, 4, 2)}, leading=2)
    flat = folded(rows, (3, 4))
    assert (flat.count, flat.tensors[1].shape) == (12, (12, 2))
    assert folded(rows, (3,)) is rows
    empty = flatten_rows({"a": torch.zeros(0, 4, 0)}, leading=2)
    assert folded(empty, (0, 4)).tensors[0].shape == (0, 0)
    with pytest.raises(LayoutError, match=r"a must have the leading shape \[4, 3\]; got shape \[3, 4\]"):
        folded(rows, (4, 3))


REFUSED: list[tuple[str, Any, str]] = [
    ("number", 5, "data must be a dense tensor; got int"),
    ("text", "abc", "data must be a dense tensor; got str"),
    ("nested text", {"a": torch.zeros(2), "n": {"t": "abc"}}, r"n\.t must be a dense tensor; got str"),
    ("array", {"a": np.zeros(2)}, "a must be a dense tensor; got ndarray"),
    (
        "non-tensor data",
        TensorDict({"n": {"t": NonTensorData("x", batch_size=[2])}}, [2]),
        r"n\.t must be a dense tensor",
    ),
    ("sparse", torch.eye(2).to_sparse(), "layout torch.sparse_coo"),
    ("sparse entry", TensorDict({"a": torch.eye(2).to_sparse()}, [2]), r"a must be a dense tensor.*sparse_coo"),
    ("ragged", torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)], layout=torch.jagged), "dense"),
    ("ragged stack", lazy_stack([TensorDict({"a": torch.zeros(n)}, []) for n in (1, 2)]), "a.*dense"),
    ("no leading dimension", torch.tensor(1.0), "data must have 1 leading"),
    ("no batch size", TensorDict({"a": torch.zeros(2)}, []), r"batch_size \(\[\]\) must have at least 1"),
    ("lengths", {"a": torch.zeros(2), "b": torch.zeros(3)}, r"b \(3 rows\) must have as many rows as a \(2 rows\)"),
    ("empty dict", {}, "at least one tensor; got an empty dict"),
    ("empty TensorDict", TensorDict({}, [2]), "at least one tensor"),
    ("number key", {0: torch.zeros(2)}, r"data key \(0\) must be a string"),
]


@pytest.mark.parametrize(("data", "words"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_is_no_rows_is_refused_by_name(data: Any, words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        flatten_rows(data)


def test_classes_that_cannot_be_found_again_are_refused_at_once() -> None:
    local = namedtuple("local", ["x"])
    local.__qualname__ = "test.<locals>.local"
    with pytest.raises(LayoutError, match="top level"):
        flatten_rows(local(torch.zeros(2)))


@pytest.mark.parametrize(
    "path", ["os:system", "builtins:eval", "no_such_module:Class", "torch:Tensor", "builtins:tuple", ""]
)
def test_a_class_name_can_make_nothing_else(path: str) -> None:
    for spec in (("nt", path, (("x", "t"),)), ("tc", 1, path, (("x", "t"),))):
        with pytest.raises(LayoutError, match="tensorclass or named tuple"):
            build(spec, [torch.zeros(1)], (1,))


def _row(data: Any, place: int) -> Any:
    if isinstance(data, dict):
        return {name: _row(part, place) for name, part in data.items()}
    if isinstance(data, tuple):
        parts = [_row(part, place) for part in data]
        return type(data)(*parts) if hasattr(data, "_fields") else tuple(parts)
    return [_row(part, place) for part in data] if isinstance(data, list) else data[place]


def _same(left: Any, right: Any) -> bool:
    if isinstance(right, dict):
        return type(left) is dict and left.keys() == right.keys() and all(_same(left[k], right[k]) for k in right)
    if isinstance(right, tuple | list):
        return type(left) is type(right) and all(map(_same, left, right)) and len(left) == len(right)
    if isinstance(right, torch.Tensor):
        return torch.equal(left, right)
    kind = TensorDict if type(right).__name__ == "LazyStackedTensorDict" else type(right)
    return isinstance(left, kind) and left.batch_size == right.batch_size and bool((left == right).all())
