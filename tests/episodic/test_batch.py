from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

from replay_service.episodic.batch import Batch


def documented() -> Batch:
    return Batch(a=4, b=[5, 5], c="2312312", d=("a", -2, -3))


def test_the_documents_first_batch() -> None:
    data = documented()
    assert repr(data.b) == "array([5, 5])"
    data.b = np.array([3, 4, 5])
    assert repr(data) == (
        "Batch(\n    a: array(4),\n    b: array([3, 4, 5]),\n    c: '2312312',\n"
        "    d: array(['a', '-2', '-3'], dtype=object),\n)"
    )


def test_the_documents_second_batch() -> None:
    data = Batch(obs={"index": np.zeros((2, 3))}, act=torch.zeros((2, 2)))
    data[:, 1] += 6
    assert repr(data[-1]) == (
        "Batch(\n    obs: Batch(\n             index: array([0., 6., 0.]),\n         ),\n    act: tensor([0., 6.]),\n)"
    )
    assert data.obs.index.tolist() == [[0, 6, 0], [0, 6, 0]]


def test_a_lone_observation_gets_the_leading_dimension() -> None:
    assert Batch(obs=[np.arange(4)]).obs.shape == (1, 4)
    assert Batch(obs=[{"x": 1.0}]).obs.x.tolist() == [1.0]


def test_the_document_batch_has_the_kinds_it_says() -> None:
    data = documented()
    assert (data.a.shape, int(data.a)) == ((), 4)
    assert data.b.dtype == np.int64
    assert isinstance(data.c, str)
    assert data.d.tolist() == ["a", "-2", "-3"]


@pytest.mark.parametrize(
    ("given", "dtype", "shape"),
    [
        ([1, 2.5], np.float64, (2,)),
        ([None, 1], object, (2,)),
        ([[1], [2, 3]], object, (2,)),
        ([], np.float64, (0,)),
        ([True, False], np.bool_, (2,)),
        ([np.zeros(2), np.zeros(3)], object, (2,)),
        ([np.zeros((2, 2)), np.zeros((2, 3))], object, (2,)),
        ([np.zeros(2, np.float32), np.ones(2, np.float32)], np.float32, (2, 2)),
        (np.array(["x", "y"]), object, (2,)),
        ("xy", None, None),
        (np.uint8(3), np.uint8, ()),
        (True, np.bool_, ()),
    ],
)
def test_what_becomes_of_values(given: object, dtype: object, shape: object) -> None:
    leaf = Batch(a=given).a
    if dtype is None:
        assert leaf == given
    else:
        assert (leaf.dtype, leaf.shape) == (np.dtype(dtype), shape)


def test_lists_of_tensors() -> None:
    assert Batch(a=[torch.zeros(2), torch.ones(2)]).a.shape == (2, 2)
    with pytest.raises(TypeError, match=r"\[\[2\], \[3\]\]"):
        Batch(a=[torch.zeros(2), torch.zeros(3)])
    with pytest.raises(TypeError, match="int"):
        Batch(a=[torch.zeros(2), 1])


def test_lists_of_dicts_are_stacked() -> None:
    stacked = Batch([{"a": 0.0, "b": "h"}, {"a": 1.0, "b": "j"}])
    assert stacked.a.tolist() == [0.0, 1.0]
    assert stacked.b.tolist() == ["h", "j"]
    assert Batch([{"a": 0.0, "b": 1}, {"a": 1.0}]).b.tolist() == [1, 0]
    assert Batch(info=[{"x": {"y": 1}}, {}]).info.x.y.tolist() == [1, 0]
    assert Batch(np.array([{"a": 1}, {"a": 2}], dtype=object)).a.tolist() == [1, 2]
    assert Batch([]).is_empty()
    assert Batch(a=[{"b": 1}, None]).a.tolist() == [{"b": 1}, None]


def test_keys_and_other_values() -> None:
    for error in (TypeError, AssertionError):
        with pytest.raises(error, match=r"name \(1\) must be a str"):
            Batch({1: 2})
    assert Batch(a={1, 2}).a == {1, 2}
    assert Batch(a=None).a is None
    assert isinstance(Batch(a={"y": [1, 2]}).a, Batch)
    assert Batch(a=np.array({"k": 1}, dtype=object)).a == {"k": 1}
    with pytest.raises(TypeError, match="batch_dict"):
        Batch(3)  # type: ignore[arg-type]


def test_arrays_are_kept_by_reference_and_slices_are_views() -> None:
    array = np.array([1, 2])
    Batch(a=array).a[0] = 7
    assert array.tolist() == [7, 2]
    Batch(a=array, copy=True).a[0] = 0
    assert array.tolist() == [7, 2]
    whole = Batch(a=[1, 2], t=torch.arange(2))
    whole[:1].a[0] = 9
    whole[:1].t[0] = 9
    assert (whole.a.tolist(), whole.t.tolist()) == ([9, 2], [9, 1])


def test_names_by_attribute_and_item() -> None:
    batch = Batch({"a": 1}, b=2)
    batch["c"] = [1, 2]
    batch.update(d={"e": 1})
    assert (list(batch.keys()), "c" in batch, "z" in batch) == (["a", "b", "c", "d"], True, False)
    assert batch["c"] is batch.c is batch.get("c")
    assert batch.get("z", 7) == 7
    assert int(batch.pop("a")) == 1
    del batch.b, batch["c"]
    assert list(batch.keys()) == ["d"]
    with pytest.raises(AttributeError, match=r"'z'.*\['d'\]"):
        _ = batch.z
    with pytest.raises(KeyError):
        _ = batch["z"]
    with pytest.raises(AttributeError, match="z"):
        del batch.z
    assert batch.to_dict() == {"d": {"e": np.array(1)}}


def test_names_of_methods_are_reached_by_item() -> None:
    batch = Batch({"items": [1, 2], "shape": [3, 4]})
    assert batch["items"].tolist() == [1, 2]
    assert len(list(batch.items())) == 2
    assert batch.shape == [2]
    with pytest.raises(AttributeError, match=r"batch\['keys'\]"):
        batch.keys = 3  # type: ignore[assignment, method-assign]


def test_length_and_shape() -> None:
    assert len(Batch(a=[1, 2, 3], b=[1, 2])) == 2
    assert len(Batch()) == 0
    assert len(Batch(a=[1, 2], n=None, e={})) == 2
    with pytest.raises(TypeError, match=r"x\.a .*must have rows"):
        len(Batch(x={"a": 1}))
    with pytest.raises(TypeError, match="must have rows"):
        len(Batch(a=[1], c="abc"))
    assert Batch(a=np.zeros((3, 4)), b=np.zeros((3, 2, 5))).shape == [3, 2]
    assert Batch(a=np.zeros((3, 4)), e={}).shape == [3, 4]
    assert Batch(a=1, b=[1, 2]).shape == Batch().shape == []


def test_indexing() -> None:
    batch = Batch(a=[4, 5], t=torch.tensor([4, 5]), n=None, e={}, z={"k": [4, 5]})
    row = batch[0]
    assert (int(row.a), int(row.t), row.n, row.e.is_empty(), int(row.z.k)) == (4, 4, None, True, 4)
    for index in (
        [True, False],
        np.array([True, False]),
        np.array([0]),
        torch.tensor([0]),
        slice(1),
        [0],
        slice(-2, -1),
    ):
        assert batch[index].a.tolist() == batch[index].t.tolist() == batch[index].z.k.tolist() == [4]
    assert batch[::-1].a.tolist() == batch[::-1].t.tolist() == [5, 4]
    assert batch[None].a.shape == batch[None].t.shape == (1, 2)
    assert batch[np.int64(1)].t == 5
    assert [int(part.a) for part in batch] == [4, 5]


@pytest.mark.parametrize(
    ("batch", "index"), [(Batch(), 0), (Batch(a=[1, 2]), 5), (Batch(a=1), 0), (Batch(a=[1], s="x"), 0)]
)
def test_wrong_indices(batch: Batch, index: int) -> None:
    with pytest.raises(IndexError):
        _ = batch[index]


def test_setting_rows_resets_what_is_not_given() -> None:
    def fresh() -> Batch:
        return Batch(a=[1, 2], b=[3.0, 4.0], o=["x", "y"], c={"d": [1, 2]}, t=torch.tensor([1, 2]), n=None)

    batch = fresh()
    batch[0] = {"a": 9}
    assert (batch.a.tolist(), batch.b.tolist(), batch.o.tolist()) == ([9, 2], [0, 4], [None, "y"])
    assert (batch.c.d.tolist(), batch.t.tolist(), batch.n) == ([0, 2], [0, 2], None)
    batch = fresh()
    batch[np.array([1, 0])] = Batch(a=[8, 9], b=[1, 2], o=["p", "q"], c={"d": [5, 6]}, t=torch.tensor([7, 8]))
    assert (batch.a.tolist(), batch.o.tolist(), batch.c.d.tolist(), batch.t.tolist()) == (
        [9, 8],
        ["q", "p"],
        [6, 5],
        [8, 7],
    )


@pytest.mark.parametrize(
    "value", [{"z": 1}, 3, {"a": [1, 2, 3]}, {"a": "word"}, {"c": 3}, {"c": {"z": 1}}, {"a": 5, "n": 3}]
)
def test_setting_rows_that_do_not_fit_changes_nothing(value: object) -> None:
    batch = Batch(b=[3.0, 4.0], a=[1, 2], c={"d": [1, 2]}, n=None)
    with pytest.raises(ValueError, match="must"):
        batch[0] = value
    assert (batch.a.tolist(), batch.b.tolist(), batch.c.d.tolist()) == ([1, 2], [3, 4], [1, 2])


def test_emptying() -> None:
    batch = Batch(a=[1, 2], b=["x", "y"], c=[1.0, 2.0])
    assert batch.empty(1).a.tolist() == Batch.empty(batch, 1).a.tolist() == [1, 0]
    assert batch.empty_(0) is batch
    assert (batch.a.tolist(), batch.b.tolist(), batch.c.tolist()) == ([0, 2], [None, "y"], [0.0, 2.0])
    assert batch.empty_().a.tolist() == [0, 0]


def test_is_empty() -> None:
    assert Batch().is_empty()
    assert not Batch(a=Batch()).is_empty()
    assert Batch(a=Batch(b={})).is_empty(recurse=True)
    assert not Batch(a=1).is_empty(recurse=True)


@pytest.mark.parametrize(
    ("rows", "size", "merge_last", "pieces"),
    [
        (7, 3, False, [[0, 1, 2], [3, 4, 5], [6]]),
        (7, 3, True, [[0, 1, 2], [3, 4, 5, 6]]),
        (6, 3, True, [[0, 1, 2], [3, 4, 5]]),
        (3, 10, False, [[0, 1, 2]]),
        (3, 10, True, [[0, 1, 2]]),
        (3, -1, True, [[0, 1, 2]]),
        (0, 3, False, []),
    ],
)
def test_splitting(rows: int, size: int, merge_last: bool, pieces: list[list[int]]) -> None:
    batch = Batch(a=np.arange(rows))
    assert [part.a.tolist() for part in batch.split(size, shuffle=False, merge_last=merge_last)] == pieces
    shuffled = list(batch.split(size, merge_last=merge_last))
    assert [len(part) for part in shuffled] == [len(piece) for piece in pieces]
    assert sorted(row for part in shuffled for row in part.a.tolist()) == list(range(rows))


def test_splitting_is_repeated_by_a_generator_and_checked_at_once() -> None:
    batch = Batch(a=np.arange(100))
    orders = [
        [part.a.tolist() for part in batch.split(30, generator=torch.Generator().manual_seed(seed))]
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1] != orders[2]
    with pytest.raises(ValueError, match=r"size \(0\)"):
        batch.split(0)


def test_equality() -> None:
    assert Batch(a=np.array([1, 2])) == Batch(a=torch.tensor([1, 2]))
    assert Batch(a=[1.0]) != Batch(a=[1])
    assert Batch(a=[1], s="x", n=None, z={"k": [np.nan]}) == Batch(a=[1], s="x", n=None, z={"k": [np.nan]})
    assert Batch(a=[1]) != Batch(a=[1], b=2)
    assert Batch(a=[1]) != Batch(a="x")
    assert Batch(a=[1]) != 3


def test_copies() -> None:
    batch = Batch(a=[1, 2], o=["x", None], z={"t": torch.arange(2)}, n=None)
    for made in (pickle.loads(pickle.dumps(batch)), copy.deepcopy(batch)):
        assert made == batch
        made.a[0] = 5
        made.z.t[0] = 5
        assert (batch.a.tolist(), batch.z.t.tolist()) == ([1, 2], [0, 1])
    shallow = copy.copy(batch)
    shallow.b = 3
    assert "b" not in batch
    assert shallow.a is batch.a


def test_wrapping_converts_nothing() -> None:
    content = {"a": [1, 2]}
    batch = Batch.wrap(content)
    assert batch.a is content["a"]
    batch.b = 1
    assert "b" in content
