"""How batches are put together of what storages give, with functions of the user's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service import LazyTensorStorage, ListStorage, ReplayBuffer, TensorDictReplayBuffer


def padded(records: list[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(records, batch_first=True)


def joined(records: list[str]) -> str:
    return "".join(records)


def test_lists_are_collated_by_the_given_function() -> None:
    rb = ReplayBuffer(storage=ListStorage(10), batch_size=8, collate_fn=padded)
    rb.extend([torch.ones(length) for length in (1, 2, 3)])
    batch = rb.sample()
    assert batch.ndim == 2
    assert set(batch.sum(1).tolist()) <= {1.0, 2.0, 3.0}
    assert rb[:].tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert rb.read_all_in_order(2).shape == (2, 2)
    assert rb[1].tolist() == [1, 1]  # a single record is no batch


def test_columns_are_collated_too() -> None:
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4, collate_fn=lambda data: data.select("x"))
    rb.extend(TensorDict({"x": torch.arange(6), "y": torch.zeros(6)}, [6]))
    sample = rb.sample()
    assert set(sample.keys()) == {"x", "index"}
    assert torch.equal(sample["x"], sample["index"])
    assert set(rb[:3].keys()) == {"x"}
    assert rb.dense_leaves() is None


@pytest.mark.parametrize("storage", [ListStorage, LazyTensorStorage])
def test_whatever_the_function_makes_is_the_sample(storage: Any) -> None:
    rb = TensorDictReplayBuffer(storage=storage(10), batch_size=4, collate_fn=lambda records: ("made", len(records)))
    rb.extend(TensorDict({"x": torch.arange(6)}, [6]))
    assert rb.sample() == ("made", 4)
    (name, count), info = rb.sample(3, return_info=True)
    assert (name, count, info["index"].shape) == ("made", 3, (3,))


def test_transforms_come_after_it_and_prefetch_around_it() -> None:
    rb = ReplayBuffer(storage=ListStorage(10), batch_size=4, collate_fn=joined, transform=str.upper, prefetch=2)
    rb.extend(list("aaaa"))
    assert [rb.sample() for _ in range(5)] == ["AAAA"] * 5
    rb.close()


def test_a_new_storage_brings_its_own() -> None:
    rb = ReplayBuffer(storage=ListStorage(10), batch_size=2, collate_fn=joined)
    rb.extend(["a", "a"])
    rb.set_storage(ListStorage(10), collate_fn=len)
    rb.extend(["b", "b"])
    assert rb.sample() == 2
    rb.set_storage(ListStorage(10))
    rb.extend(["c", "c"])
    assert rb.sample() == ["c", "c"]
