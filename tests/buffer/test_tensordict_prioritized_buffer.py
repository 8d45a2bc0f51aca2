"""TensorDictPrioritizedReplayBuffer: priorities travel with the data, in and out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    PriorityError,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)


def _buffer(storage: Any = None, **settings: Any) -> TensorDictPrioritizedReplayBuffer:
    storage = LazyTensorStorage(8) if storage is None else storage
    return TensorDictPrioritizedReplayBuffer(
        **{"alpha": 1.0, "beta": 1.0, "eps": 0.0, "storage": storage, "batch_size": 4, **settings}
    )


def _rows(*priorities: Any) -> TensorDict:
    values = torch.tensor(priorities, dtype=torch.float64)
    return TensorDict({"x": torch.arange(len(priorities)), "td_error": values}, [len(priorities)])


def test_samples_carry_weights_and_can_be_handed_back() -> None:
    buffer = _buffer(writer=TensorDictRoundRobinWriter(track_generations=True))
    buffer.extend(_rows(1.0, 2.0, 4.0))
    sample = buffer.sample()
    assert {"x", "index", "index_generation", "priority_weight", "td_error"} == set(sample.keys())
    assert torch.equal(sample["priority_weight"], 1 / sample["td_error"].float())
    sample["td_error"] = torch.full((4,), 3.0, dtype=torch.float64)
    buffer.update_tensordict_priority(sample)
    drawn = set(sample["index"].tolist())
    assert buffer.sampler.priorities().tolist() == [3.0 if i in drawn else 2.0**i for i in range(3)]
    buffer.extend(sample)  # what a sample carries beside the data is left out
    assert set(buffer[:].keys()) == {"x", "td_error"}


def test_overwritten_rows_of_a_batch_are_skipped() -> None:
    buffer = _buffer(LazyTensorStorage(3), writer=TensorDictRoundRobinWriter(track_generations=True))
    buffer.extend(_rows(1.0, 1.0, 1.0))
    sample = buffer.sample(100)
    buffer.extend(_rows(5.0))
    sample["td_error"] = torch.full((100,), 9.0)
    buffer.update_tensordict_priority(sample)
    assert buffer.sampler.priorities().tolist() == [5.0, 9.0, 9.0]


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_new_rows_take_the_priority_they_carry(storage: Any) -> None:
    buffer = _buffer(storage(8))
    buffer.extend(_rows(3.0, 0.5))
    buffer.add(_rows(7.0)[0])
    assert buffer.sampler.priorities().tolist() == [3.0, 0.5, 7.0]
    buffer.extend(_rows(1.0, 2.0), update_priority=False)
    assert buffer.sampler.priorities().tolist() == [3.0, 0.5, 7.0, 7.0, 7.0]
    buffer.extend(_rows(*range(1, 12)), update_priority=True)  # more than there is room for
    assert sorted(buffer.sampler.priorities().tolist()) == list(range(4, 12))
    assert torch.equal(buffer.sampler.priorities(), torch.stack([row["td_error"] for row in buffer[:].unbind(0)]))


def test_a_wrong_priority_keeps_the_rows_out() -> None:
    buffer = _buffer()
    buffer.extend(_rows(1.0, 2.0))
    for wrong in (float("nan"), float("inf"), -1.0):
        with pytest.raises(PriorityError):
            buffer.extend(_rows(1.0, wrong))
        with pytest.raises(PriorityError):
            buffer.add(_rows(wrong)[0])
    assert (len(buffer), buffer.write_count) == (2, 2)
    assert buffer.sampler.priorities().tolist() == [1.0, 2.0]
    buffer.extend(_rows(float("nan")), update_priority=False)
    assert buffer.sampler.priorities().tolist() == [1.0, 2.0, 2.0]


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_rows_without_a_priority_take_the_default(storage: Any) -> None:
    buffer = _buffer(storage(8))
    buffer.extend(_rows(3.0, 0.5).exclude("td_error"))
    assert buffer.sampler.priorities().tolist() == [1.0, 1.0]
    with pytest.raises(KeyError, match=r"priority_key \(td_error\) must be an entry"):
        buffer.update_tensordict_priority(buffer.sample())


@pytest.mark.parametrize(("reduction", "expected"), [("max", 3.0), ("min", 1.0), ("mean", 2.0), ("median", 2.0)])
def test_several_priorities_of_a_row_become_one(reduction: str, expected: float) -> None:
    buffer = _buffer(reduction=reduction, priority_key=("agents", "error"))
    rows = TensorDict({"agents": {"error": torch.tensor([[1.0, 2.0, 3.0], [3.0, 1.0, 2.0]])}}, [2])
    buffer.extend(rows)
    assert buffer.sampler.priorities().tolist() == [expected, expected]
    sample = buffer.sample()
    sample["agents", "error"] = 2 * sample["agents", "error"]
    buffer.update_tensordict_priority(sample)
    buffer.update_priority([0], torch.tensor([[10.0, 30.0, 20.0]]))
    assert float(buffer.sampler.priorities()[0]) == 10 * expected


def test_lanes_take_the_priorities_they_carry() -> None:
    buffer = _buffer(LazyTensorStorage(6, ndim=2))
    errors = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])  # [lane, time]
    buffer.extend(TensorDict({"x": errors.clone(), "td_error": errors}, [2, 3]))
    assert buffer.sampler.priorities().tolist() == [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]
    sample = buffer.sample()
    assert torch.equal(sample["priority_weight"], 1 / sample["x"])
    sample["td_error"] = torch.full((4,), 9.0)
    buffer.update_tensordict_priority(sample)
    expected = torch.tensor([1.0, 4.0, 2.0, 5.0, 3.0, 6.0], dtype=torch.float64)
    expected[sample["index"][:, 0] * 2 + sample["index"][:, 1]] = 9.0
    assert torch.equal(buffer.sampler.priorities(), expected)


def test_a_plain_tensordict_buffer_with_the_sampler_does_the_same() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(8), sampler=PrioritizedSampler(8, 1.0, 1.0), priority_key="error", batch_size=2
    )
    buffer.extend(_rows(4.0, 2.0).rename_key_("td_error", "error"))
    assert buffer.sampler.priorities().tolist() == [4.0, 2.0]
    assert "priority_weight" in buffer.sample()
    assert "priority_weight" not in buffer.sample(include_info=False)


def test_its_own_sampler_cannot_be_replaced_at_construction() -> None:
    with pytest.raises(TypeError, match="sampler must be left out"):
        _buffer(sampler=PrioritizedSampler(8, 1.0, 1.0))
    assert isinstance(_buffer().prioritized_sampler, PrioritizedSampler)
