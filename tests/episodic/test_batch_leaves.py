"""What becomes of values in a batch. Names E… are rows of the semantics that are kept to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from replay_service.episodic.batch import Batch


def test_the_document_batch_has_the_kinds_it_says() -> None:  # E1
    data = Batch(a=4, b=[5, 5], c="2312312", d=("a", -2, -3))
    assert isinstance(data.a, np.ndarray)
    assert (data.a.shape, int(data.a)) == ((), 4)
    assert (data.b.dtype, data.b.tolist()) == (np.int64, [5, 5])
    assert isinstance(data.c, str)
    assert data.c == "2312312"
    assert (data.d.dtype, data.d.tolist()) == (np.dtype(object), ["a", "-2", "-3"])


@pytest.mark.parametrize(
    ("given", "dtype", "content"),
    [
        ([1, 2.5], np.float64, [1.0, 2.5]),
        ((1, 2), np.int64, [1, 2]),
        ([None, 1], object, [None, 1]),
        ([[1], [2, 3]], object, [[1], [2, 3]]),
        ([], np.float64, []),
        ([True, False], np.bool_, [True, False]),
        ([np.zeros(2, np.float32), np.ones(2, np.float32)], np.float32, [[0, 0], [1, 1]]),
        (["x", "y"], object, ["x", "y"]),
        (np.array(["x", "y"]), object, ["x", "y"]),
        (np.arange(2, dtype=np.uint8), np.uint8, [0, 1]),
        (np.uint8(3), np.uint8, 3),
        (np.float32(0.5), np.float32, 0.5),
        (3, np.int64, 3),
        (2.5, np.float64, 2.5),
        (True, np.bool_, True),
    ],
)
def test_what_becomes_of_values(given: Any, dtype: Any, content: Any) -> None:  # E2
    leaf = Batch(a=given).a
    assert isinstance(leaf, np.ndarray)
    assert (leaf.dtype, leaf.tolist()) == (np.dtype(dtype), content)
    assert leaf.shape == ((2,) if dtype is object else np.shape(content))


@pytest.mark.parametrize(
    "given", [[np.zeros(2), np.zeros(3)], [np.zeros((2, 2)), np.zeros((2, 3))], [np.zeros(2), np.zeros((2, 2))]]
)
def test_arrays_of_different_shapes_become_objects(given: list[np.ndarray]) -> None:
    leaf = Batch(a=given).a
    assert (leaf.dtype, leaf.shape) == (np.dtype(object), (2,))
    assert all(kept is array for kept, array in zip(leaf, given, strict=True))


@pytest.mark.parametrize("given", ["xy", None, {1, 2}, object(), len, range(3)])
def test_other_objects_are_kept_as_they_are(given: object) -> None:  # E5
    assert Batch(a=given).a is given


@pytest.mark.parametrize(
    "given",
    [
        3,
        True,
        [1, 2.5],
        ("a", 1),
        [None, 1],
        [[1], [2, 3]],
        "xy",
        None,
        {1, 2},
        {"y": [1, {"z": 2}], "n": {}},
        [{"a": 1}, {"b": 2}],
        [Batch(a=1), {"a": 2}],
        np.array(["x"]),
        np.array({"k": 1}, dtype=object),
        [torch.zeros(2), torch.ones(2)],
        torch.tensor(3),
    ],
)
def test_assigned_values_become_what_given_ones_do(given: Any) -> None:
    made = Batch(a=given)
    attribute, item, updated, updated_by_dict = (Batch() for _ in range(4))
    attribute.a = given
    item["a"] = given
    updated.update(a=given)
    updated_by_dict.update({"a": given})
    for other in (Batch({"a": given}), attribute, item, updated, updated_by_dict):
        assert type(other.a) is type(made.a)
        assert repr(other) == repr(made)
        assert other == made


def test_lists_of_tensors() -> None:  # E3
    pair = Batch(a=[torch.zeros(2), torch.ones(2)]).a
    assert isinstance(pair, torch.Tensor)
    assert pair.tolist() == [[0, 0], [1, 1]]
    assert Batch(a=(torch.tensor(1), torch.tensor(2))).a.tolist() == [1, 2]
    with pytest.raises(TypeError, match=r"\[\[2\], \[3\]\]"):
        Batch(a=[torch.zeros(2), torch.zeros(3)])
    with pytest.raises(TypeError, match="int"):
        Batch(a=[torch.zeros(2), 1])


def test_lists_of_dicts_are_stacked() -> None:  # E4
    stacked = Batch([{"a": 0.0, "b": "h"}, {"a": 1.0, "b": "j"}])
    assert stacked.a.tolist() == [0.0, 1.0]
    assert stacked.b.tolist() == ["h", "j"]
    assert Batch([{"a": 0.0, "b": 1}, {"a": 1.0}]).b.tolist() == [1, 0]
    assert Batch(info=[{"x": {"y": 1}}, {}]).info.x.y.tolist() == [1, 0]
    for given in ([Batch(a=1), Batch(a=2)], ({"a": 1}, Batch(a=2)), np.array([{"a": 1}, {"a": 2}], dtype=object)):
        assert Batch(given).a.tolist() == Batch(z=given).z.a.tolist() == [1, 2]
    assert Batch([]).is_empty()
    assert Batch(a=[{"b": 1}, None]).a.tolist() == [{"b": 1}, None]


@pytest.mark.parametrize("wrong", [{1: 2}, [{1: 2}], Batch({"x": 0}).to_dict() | {2: 3}])
def test_names_are_strings(wrong: Any) -> None:  # E5
    batch = Batch()
    calls = [lambda: Batch(wrong), lambda: Batch(a=wrong), lambda: batch.update({"b": 1, "a": wrong})]
    for call in calls:
        for error in (AssertionError, TypeError):
            with pytest.raises(error, match=r"name \(\d\) must be a str"):
                call()
    assert batch.is_empty()


def test_dicts_and_boxed_objects() -> None:  # E5
    nested = Batch(a={"y": [1, 2]}).a
    assert isinstance(nested, Batch)
    assert nested.y.tolist() == [1, 2]
    held = {"k": 1}
    assert Batch(a=np.array(held, dtype=object)).a is held
    with pytest.raises(TypeError, match="batch_dict"):
        Batch(3)  # type: ignore[arg-type]
