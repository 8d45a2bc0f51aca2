"""TensorStorage: a storage around tensors that exist already."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import NonTensorData, TensorDict

from replay_service.buffer.storages.tensor import TensorStorage
from replay_service.errors import LayoutError
from tests.contracts.storage import StorageContract
from tests.rows import stamped_rows


class TestTensorStorage(StorageContract):
    def make(self, capacity: int) -> TensorStorage:
        if capacity < 1:
            return TensorStorage(stamped_rows(3), capacity)
        storage = TensorStorage(stamped_rows(capacity))
        storage.empty()
        return storage


def test_what_it_is_made_of_counts_as_filled() -> None:
    storage = TensorStorage(torch.arange(6).view(3, 2))
    assert (len(storage), storage.max_size) == (3, 3)
    assert storage.get(2).tolist() == [4, 5]


def test_memory_is_used_not_copied() -> None:
    memory = torch.zeros(3, 2)
    storage = TensorStorage(memory)
    storage.set([1], torch.ones(1, 2), set_cursor=False)
    assert memory.tolist() == [[0, 0], [1, 1], [0, 0]]


@pytest.mark.parametrize(
    "data",
    [torch.zeros(3), TensorDict({"a": torch.zeros(3)}, [3]), {"a": torch.zeros(3), "b": (torch.ones(3),)}],
    ids=["tensor", "TensorDict", "pytree"],
)
def test_the_form_stays(data: Any) -> None:
    assert type(TensorStorage(data).get(slice(None))) is type(data)


def test_lanes() -> None:
    storage = TensorStorage(torch.arange(6).view(3, 2), ndim=2)
    assert (len(storage), storage.max_size, tuple(storage.shape)) == (6, 6, (3, 2))
    assert storage.get((2, 1)).tolist() == 5


def test_device_of_the_data() -> None:
    assert TensorStorage(torch.zeros(2), device="auto").device == torch.device("cpu")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"a": torch.zeros(3), "b": torch.zeros(2)}, r"b \(2 rows\)"),
        ({"a": torch.zeros(3), "text": "hello"}, "text must be a dense tensor; got str"),
        (
            TensorDict({"a": torch.zeros(3), "n": NonTensorData("hello", batch_size=[3])}, [3]),
            "n must be a dense tensor",
        ),
        (torch.tensor(1.0), "leading"),
        ("hello", "data must be a dense tensor"),
    ],
)
def test_what_is_not_dense_is_refused(data: Any, words: str) -> None:
    with pytest.raises(LayoutError, match=words):
        TensorStorage(data)


def test_another_capacity_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"max_size \(4\)"):
        TensorStorage(torch.zeros(3), 4)
