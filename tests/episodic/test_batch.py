from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

from replay_service.episodic.batch import Batch


def test_a_lone_observation_gets_the_leading_dimension() -> None:
    assert Batch(obs=[np.arange(4)]).obs.shape == (1, 4)
    assert Batch(obs=[{"x": 1.0}]).obs.x.tolist() == [1.0]


def test_arrays_are_kept_by_reference_and_slices_are_views() -> None:  # E6
    array = np.array([1, 2])
    Batch(a=array).a[0] = 7
    assert array.tolist() == [7, 2]
    Batch(a=array, copy=True).a[0] = 0
    assert array.tolist() == [7, 2]
    tensor = torch.arange(2)
    copied = Batch({"z": {"a": array, "t": tensor}}, copy=True)
    copied.z.a[0] = copied.z.t[0] = 5
    assert (array.tolist(), tensor.tolist()) == ([7, 2], [0, 1])
    Batch(t=tensor).t[0] = 3
    assert tensor.tolist() == [3, 1]
    whole = Batch(a=[1, 2], t=torch.arange(2), z={"a": [1, 2]})
    whole[:1].a[0] = 9
    whole[:1].t[0] = 9
    whole[:1].z.a[0] = 9
    assert (whole.a.tolist(), whole.t.tolist(), whole.z.a.tolist()) == ([9, 2], [9, 1], [9, 2])


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


def test_is_empty() -> None:
    assert Batch().is_empty()
    assert not Batch(a=Batch()).is_empty()
    assert Batch(a=Batch(b={})).is_empty(recurse=True)
    assert not Batch(a=1).is_empty(recurse=True)


def test_equality() -> None:  # E16
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
