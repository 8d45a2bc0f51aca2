"""TensorDictReplayBuffer: samples carry where they came from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict, tensorclass

from replay_service import (
    LayoutError,
    LazyTensorStorage,
    ListStorage,
    PriorityError,
    RandomSampler,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from tests.rows import assert_rows_are_whole, stamped_rows


@tensorclass
class Step:
    observation: torch.Tensor


class Keeping(RandomSampler):
    """A sampler that keeps priorities in a dict."""

    keeps_priorities = True

    def __init__(self) -> None:
        self.kept: dict[int, float] = {}

    def update_priority(self, index: torch.Tensor, priority: torch.Tensor, *, storage: Any = None) -> None:
        self.kept.update(zip(index.tolist(), priority.tolist(), strict=True))


def _buffer(**parts: Any) -> TensorDictReplayBuffer:
    parts = {"storage": LazyTensorStorage(8), "writer": TensorDictRoundRobinWriter(track_generations=True), **parts}
    buffer = TensorDictReplayBuffer(batch_size=4, **parts)
    buffer.extend(stamped_rows(8))
    return buffer


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_samples_carry_index_and_stamp(storage: type) -> None:
    data, info = _buffer(storage=storage(8)).sample(return_info=True)
    assert data["index"].tolist() == info["index"].tolist() == data["action"].tolist()
    assert data["index_generation"].tolist() == [0] * 4
    assert_rows_are_whole(data)


def test_without_info() -> None:
    buffer = _buffer()
    data, info = buffer.sample(include_info=False, return_info=True)
    assert not {"index", "index_generation"} & set(data.keys())
    assert set(info) == {"index", "index_generation"}
    assert "index" in set(buffer.sample(include_info=True).keys())


def test_a_sample_may_be_extended_again() -> None:
    buffer = _buffer()
    sample = buffer.sample()
    slots = buffer.extend(sample)
    assert buffer[slots]["action"].tolist() == sample["action"].tolist()
    assert "index" in set(sample.keys()), "the caller's batch stays as it is"
    assert buffer.add(sample[0]) == 4
    assert set(buffer[:].keys()) == {"observation", "action", "next"}


def test_lanes_have_coordinates() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(8, ndim=2), batch_size=5)
    buffer.extend(TensorDict({"v": torch.tensor([[0, 10], [1, 11]])}, [2, 2]))
    sample = buffer.sample()
    assert sample["index"].shape == (5, 2)
    assert (sample["index"] @ torch.tensor([10, 1])).tolist() == sample["v"].tolist()


def test_tensorclasses_and_pytrees_keep_info_beside() -> None:
    for data in (Step(torch.zeros(4, 2), batch_size=[4]), {"a": torch.zeros(4)}):
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(8), batch_size=3)
        buffer.extend(data)
        sample, info = buffer.sample(return_info=True)
        assert type(sample) is type(data)
        assert info["index"].shape == (3,)
        assert type(buffer.sample(include_info=False)) is type(data)


def test_bare_tensors_are_refused() -> None:
    with pytest.raises(LayoutError, match="data must be a TensorDict; got Tensor"):
        TensorDictReplayBuffer(storage=LazyTensorStorage(8)).extend(torch.zeros(3))


# -- priorities -----------------------------------------------------------------------------------------------------------


def test_priorities_of_a_batch() -> None:
    sampler = Keeping()
    buffer = _buffer(sampler=sampler)
    sample = buffer.sample()
    sample["td_error"] = torch.arange(1.0, 5.0)[:, None].repeat(1, 3) * torch.tensor([1.0, 0.5, 2.0])
    buffer.update_tensordict_priority(sample)
    assert set(sampler.kept) == set(sample["index"].tolist())
    assert sampler.kept[int(sample["index"][-1])] == 8.0, (
        "a longer entry counts as its maximum, the last row as the last"
    )


def test_rows_that_were_overwritten_are_skipped() -> None:
    sampler = Keeping()
    buffer = _buffer(sampler=sampler)
    sample = buffer[:].set("index", torch.arange(8)).set("index_generation", torch.zeros(8, dtype=torch.int64))
    buffer.extend(stamped_rows(3))
    buffer.update_tensordict_priority(sample.set("td_error", torch.ones(8)))
    assert set(sampler.kept) == {3, 4, 5, 6, 7}
    result = buffer.update_priority(sample["index"], 2.0, generation=sample["index_generation"])
    assert result.updated.tolist() == [False] * 3 + [True] * 5
    assert set(sampler.kept.values()) == {2.0}


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_impossible_priorities_set_nothing(wrong: float) -> None:
    sampler = Keeping()
    buffer = _buffer(sampler=sampler)
    with pytest.raises(PriorityError, match="must be finite and not negative"):
        buffer.update_priority(torch.arange(3), torch.tensor([1.0, wrong, 1.0]))
    sample = buffer.sample().set("td_error", torch.tensor([1.0, 1.0, wrong, 1.0]))
    with pytest.raises(PriorityError):
        buffer.update_tensordict_priority(sample)
    assert sampler.kept == {}


@pytest.mark.parametrize(
    ("index", "priority", "error"),
    [([8], 1.0, IndexError), ([0, 1], torch.ones(3), ValueError), ("a", 1.0, TypeError), ([0.5], 1.0, TypeError)],
)
def test_refused_priorities_set_nothing(index: Any, priority: Any, error: type) -> None:
    sampler = Keeping()
    with pytest.raises(error):
        _buffer(sampler=sampler).update_priority(index, priority)
    assert sampler.kept == {}


def test_a_sampler_without_priorities_takes_none() -> None:
    result = _buffer().update_priority(torch.arange(3), 1.0)
    assert (result.updated_count, result.skipped_count) == (0, 3)


def test_a_batch_without_priorities_is_refused() -> None:
    buffer = _buffer(sampler=Keeping())
    with pytest.raises(KeyError, match=r"priority_key \(td_error\) must be an entry of data"):
        buffer.update_tensordict_priority(buffer.sample())
    with pytest.raises(KeyError):
        buffer.update_tensordict_priority(TensorDict({"td_error": torch.ones(2)}, [2]))


def test_the_priority_key_is_chosen() -> None:
    sampler = Keeping()
    buffer = _buffer(sampler=sampler, priority_key=("next", "error"))
    assert buffer.priority_key == ("next", "error")
    buffer.update_tensordict_priority(buffer.sample().set(("next", "error"), torch.full((4,), 3.0)))
    assert set(sampler.kept.values()) == {3.0}
