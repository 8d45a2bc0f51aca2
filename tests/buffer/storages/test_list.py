"""ListStorage: any record, as it came."""

from __future__ import annotations

import sys
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, TensorDict

from replay_service.buffer.storages.list import ListStorage, stacked
from replay_service.errors import LayoutError
from tests.contracts.storage import StorageContract

Pair = namedtuple("Pair", ["first", "second"])


class TestListStorage(StorageContract):
    def make(self, capacity: int) -> ListStorage:
        return ListStorage(capacity)


RECORDS: list[Any] = [
    "text",
    b"bytes",
    3,
    2.5,
    None,
    True,
    {"words": ["a", "b"], "image": torch.ones(2)},
    (torch.zeros(1), "x"),
    Pair(torch.zeros(2), 1),
    np.arange(3),
    torch.arange(3),
    TensorDict({"a": torch.ones(2), "note": NonTensorData("hello")}, []),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_records_come_back_as_they_are(record: Any) -> None:
    storage = ListStorage(2)
    storage.set(range(2), [record, record])
    got = storage.get(1)
    assert type(got) is type(record)
    if isinstance(record, torch.Tensor | np.ndarray):
        assert got.tolist() == record.tolist()
    elif isinstance(record, TensorDict):
        assert got["note"] == "hello"
        assert got["a"].tolist() == [1, 1]
    elif isinstance(record, dict):
        assert got["words"] == ["a", "b"]
    elif not isinstance(record, tuple):
        assert got == record


def test_ragged_tensors_keep_their_shapes() -> None:
    storage = ListStorage(4)
    storage.set(range(3), [torch.ones(n) for n in (1, 2, 3)])
    assert [tuple(record.shape) for record in storage.get([2, 0])] == [(3,), (1,)]


def test_nested_mutables_are_copied_both_ways() -> None:
    record = {"list": [1, 2], "array": np.zeros(2), "nested": ({"deep": torch.zeros(1)},)}
    storage = ListStorage(1)
    storage.set(range(1), [record])
    record["list"].append(3)  # type: ignore[attr-defined]
    record["nested"][0]["deep"] += 1  # type: ignore[index]
    got = storage.get(0)
    got["array"] += 5
    got["nested"][0]["deep"] += 5
    kept = storage.get(0)
    assert kept["list"] == [1, 2]
    assert kept["array"].tolist() == [0, 0]
    assert kept["nested"][0]["deep"].tolist() == [0]


def test_without_bound() -> None:
    storage = ListStorage()
    assert storage.max_size == sys.maxsize
    storage.set(range(3), [1, 2, 3])
    storage.track_generations().advance_range(0, 3)
    assert storage.generations is not None
    assert storage.generations.of(torch.tensor([2, 10**9])).tolist() == [0, -1]


def test_tensors_are_detached() -> None:
    storage = ListStorage(1)
    storage.set(range(1), [torch.ones(2, requires_grad=True)])
    assert not storage.get(0).requires_grad


def test_device_moves_tensors_on_their_way_in() -> None:
    storage = ListStorage(2, device="cpu")
    storage.set(range(2), [torch.ones(1), "text"])
    assert storage.get(0).device.type == "cpu"
    assert storage.get(1) == "text"


@pytest.mark.parametrize("data", [{"a": torch.ones(3)}, 5, "text", b"text", torch.tensor(1.0)])
def test_what_is_no_sequence_of_records_is_refused(data: Any) -> None:
    storage = ListStorage(4)
    with pytest.raises(LayoutError, match="data"):
        storage.prepare(data)
    assert len(storage) == 0


def test_there_are_no_columns() -> None:
    storage = ListStorage(2)
    assert storage.leaves() is None
    assert storage.spec() is None
    assert not storage.columnar
    nothing = torch.zeros(0, dtype=torch.int64)
    for call in (
        lambda: storage.column("a"),
        lambda: storage.read_into(nothing, []),
        lambda: storage.write_cells("a", nothing, nothing),
    ):
        with pytest.raises(TypeError, match="ListStorage"):
            call()


class TestStacked:
    def test_leaves_are_stacked(self) -> None:
        assert stacked([torch.zeros(2), torch.ones(2)]).tolist() == [[0, 0], [1, 1]]
        assert stacked([TensorDict({"a": torch.ones(2)}, [])] * 3).shape == (3,)
        nested = stacked([{"a": torch.ones(1), "b": (torch.zeros(1),)}] * 2)
        assert nested["a"].shape == (2, 1)
        assert nested["b"][0].shape == (2, 1)

    def test_named_tuples_stay(self) -> None:
        batch = stacked([Pair(torch.zeros(1), torch.ones(1))] * 2)
        assert isinstance(batch, Pair)
        assert batch.second.tolist() == [[1], [1]]

    @pytest.mark.parametrize(
        "records", [["a", "b"], [1, 2], [torch.ones(1), torch.ones(2)], [torch.ones(1), "a"], [{"a": 1}, {"b": 1}], []]
    )
    def test_what_cannot_be_stacked_stays_a_list(self, records: list[Any]) -> None:
        assert stacked(records) is not None
        assert len(stacked(records)) == len(records)
        assert isinstance(stacked(records), list)
