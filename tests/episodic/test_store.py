from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from replay_service.episodic import Batch
from replay_service.episodic.store import StepStore
from replay_service.errors import LayoutError


def stored(rows: int = 2, **entries: Any) -> StepStore:
    store = StepStore(4)
    store.write(np.arange(rows), store.check(entries, rows))
    return store


def test_entries_are_nested_as_they_came() -> None:
    store = stored(obs=Batch(a=np.array([1, 2]), b={"c": np.array(["x", None], object)}), act=torch.ones(2, 3))
    assert store.names == ("obs", "act")
    assert store.whole.obs.a.tolist() == [1, 2, 0, 0]
    assert store.whole.obs.b.c.tolist() == ["x", None, None, None]
    assert store.column(("obs", "a")).tensor is not None
    assert store.column(("obs", "b", "c")).tensor is None
    assert isinstance(store.read(("act",), np.array([1])), torch.Tensor)
    assert store.read(("obs",), np.array([[1, 0]])).b.c.tolist() == [[None, "x"]]
    assert (store.has(("obs", "b")), store.has(("obs", "x")), store.has(("act", "x"))) == (True, False, False)
    with pytest.raises(KeyError, match=r"obs\.a"):
        store.column("nothing")


@pytest.mark.parametrize(
    "entries",
    [
        {"obs": np.zeros((2, 3))},
        {"obs": np.zeros(3)},
        {"obs": np.array(["a", "b"], object)},
        {"obs": np.zeros(2, complex)},
        {"obs": {"a": np.zeros(2)}},
        {"info": {"n": {"m": np.zeros(2)}}},
        {"info": np.zeros(2)},
        {"other": np.array(3)},
        {"other": "text"},
    ],
)
def test_what_does_not_fit_is_refused(entries: dict[str, Any]) -> None:
    store = stored(obs=np.zeros(2), info=Batch(n=np.zeros(2)))
    with pytest.raises(LayoutError):
        store.check({"obs": np.zeros(2), **entries}, 2)


def test_what_is_new_and_what_is_left_out() -> None:
    store = stored(obs=np.zeros(2), info=Batch(n=np.ones(2), s=np.array(["a", "b"], object)))
    store.write(np.array([2]), store.check({"obs": np.ones(1), "info": {"t": torch.ones(1)}}, 1))
    store.write(np.array([1]), store.check({"obs": np.ones(1), "info": {"n": None}}, 1))
    assert store.whole.info.n.tolist() == [1, 0, 0, 0]
    assert store.whole.info.s.tolist() == ["a", None, None, None]
    assert store.whole.info.t.tolist() == [0, 0, 1, 0]
    with pytest.raises(LayoutError, match=r"obs \(missing\)"):
        store.check({}, 1)


def test_entries_that_are_sometimes_none() -> None:
    store = stored(obs=np.zeros(2), info=Batch(n=np.ones(2), o=np.array([None, "x"], object)))
    some = np.array([None, 5.0], object)
    info = {"n": some, "o": np.arange(6).reshape(2, 3), "v": np.array([None, None], object)}
    store.write(np.array([2, 3]), store.check({"obs": np.ones(2), "info": info}, 2))
    assert store.whole.info.n.tolist() == [1, 1, 0, 5]
    assert store.whole.info.o[3].tolist() == [3, 4, 5]
    store.write(np.array([0]), store.check({"obs": np.ones(1), "info": {"n": some[:1], "v": np.ones((1, 2))}}, 1))
    assert store.whole.info.n.tolist() == [0, 1, 0, 5]
    assert store.whole.info.v[0].tolist() == [1, 1]
    with pytest.raises(LayoutError, match="obs"):
        store.check({"obs": some}, 2)


def test_the_last_of_several_rows_for_one_slot_stays() -> None:
    store = StepStore(2)
    rows = {"a": np.arange(4), "t": torch.arange(4), "o": np.array(["a", "b", "c", "d"], object)}
    store.write(np.array([0, 1, 0, 1]), store.check(rows, 4))
    assert [list(store.whole[name]) for name in ("a", "t", "o")] == [[2, 3], [2, 3], ["c", "d"]]


def test_numbers_are_cast_to_the_first_type() -> None:
    store = stored(n=np.array([1, 2], np.int32), f=np.array([1.0, 2.0], np.float32), rew=torch.tensor([1, 2]))
    store.write(np.array([0]), store.check({"n": np.array([3.9]), "f": np.array([4]), "rew": np.array([5])}, 1))
    assert (store.whole.n.tolist(), store.whole.n.dtype) == ([3, 2, 0, 0], np.int32)
    assert (store.whole.rew.dtype, store.whole.rew[0]) == (np.float64, 5.0)


def test_types_that_torch_has_not() -> None:
    times = np.array(["2020-01-01", "2021-01-01"], "datetime64[D]")
    store = stored(t=times, i=np.array([1, 2], ">i4"))
    assert store.column("t").tensor is None
    assert store.read(("t",), np.array([1]))[0] == times[1]
    assert store.whole.i.tolist() == [1, 2, 0, 0]
    assert not store.nulls(np.arange(2)).any()


def test_nulls() -> None:
    store = stored(
        a=np.array([1.0, np.nan]), t=torch.tensor([[1.0], [2.0]]), o=np.array([None, "x"], object), i=np.zeros(2, int)
    )
    assert store.nulls(np.array([0, 1])).tolist() == [True, True]
    assert store.nulls(np.empty(0, np.int64)).size == 0
    with pytest.raises(TypeError, match="default_value"):
        store.column("i").fill(None)


def test_large_reads_use_memory_again() -> None:
    store = StepStore(600)
    rows = np.random.default_rng(0).integers(0, 255, (600, 32, 32), np.uint8)
    store.write(np.arange(600), store.check({"obs": rows}, 600))
    slots = np.arange(599, 0, -2)
    first = store.read(("obs",), slots)
    second = store.read(("obs",), slots)
    assert (first == rows[slots]).all()
    assert not np.shares_memory(first, second)
    place = first.ctypes.data
    del first
    assert store.read(("obs",), slots).ctypes.data == place
