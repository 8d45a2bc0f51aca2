"""Buffers whose records are used up: draws, writes into freed slots, and what such a buffer cannot be made of."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service import (
    ConsumingSampler,
    EmptyBufferError,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    Transition,
)
from replay_service.buffer.writers.base import Writer


def test_the_documented_example() -> None:
    buffer = ReplayBuffer(storage=ListStorage(8), batch_size=2, consume_after_n_samples=1)
    assert buffer.extend([torch.tensor(i) for i in range(3)]).tolist() == [0, 1, 2]
    batch = buffer.sample()
    assert len(batch) == 2
    assert len(buffer) == 1
    index = buffer.extend([torch.tensor(3), torch.tensor(4)])
    assert index.tolist() == batch.tolist(), "the slots of the two records that were used up"
    assert len(buffer) == 3
    assert buffer.write_count == 5
    assert sorted(torch.cat([buffer.sample(), buffer.sample()]).tolist()) == sorted(
        {0, 1, 2, 3, 4} - set(batch.tolist())
    )
    with pytest.raises(EmptyBufferError):
        buffer.sample()
    assert buffer.stats()["size"] == len(buffer) == 0


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
@pytest.mark.parametrize("times", [1, 3])
def test_like_a_set_of_records(storage: Any, times: int) -> None:
    """Random writes and draws against a plain set: nothing live is lost, nothing used up comes back."""
    choose = random.Random(times)
    buffer = TensorDictReplayBuffer(
        storage=storage(32),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        consume_after_n_samples=times,
        generator=torch.Generator().manual_seed(times),
    )
    drawn: dict[int, int] = {}  # live record -> how often it was drawn
    slots: dict[int, int] = {}  # slot -> record
    stamp, written = 0, 0
    for _ in range(300):
        if choose.random() < 0.5:
            count = choose.randint(1, 12)
            free = 32 - len(drawn)
            values = torch.arange(stamp, stamp + count)
            index = buffer.extend(TensorDict({"x": values}, [count])).tolist()
            overwritten = [slots[slot] for slot in index if slots.get(slot) in drawn]
            assert len(overwritten) == max(0, count - free), "a live record goes only where no slot is free"
            for record in overwritten:
                del drawn[record]
            slots.update(zip(index, values.tolist(), strict=True))
            drawn.update(dict.fromkeys(values.tolist(), 0))
            stamp, written = stamp + count, written + count
        elif drawn:
            batch = buffer.sample(choose.randint(1, 12))
            assert batch["x"].tolist() == [slots[slot] for slot in batch["index"].tolist()]
            assert torch.equal(batch["index_generation"], buffer.writer.generations_of(batch["index"]))
            for record in batch["x"].tolist():
                drawn[record] += 1
                if drawn[record] == times:
                    del drawn[record]
        assert len(buffer) == len(drawn)
        assert buffer.can_sample(1) == bool(drawn)
    assert buffer.write_count == written
    assert sorted(buffer[:]["x"].tolist()) == sorted(slots.values()), "used up records stay where they are"


def test_late_writes_do_not_bring_records_back() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(4), writer=RoundRobinWriter(track_generations=True), consume_after_n_samples=1
    )
    buffer.extend(TensorDict({"x": torch.arange(4)}, [4]))
    sample = buffer.sample(3)
    call = {"index": sample["index"], "generation": sample["index_generation"], "patch": {"x": torch.tensor([7, 8, 9])}}
    assert buffer.update_if_present(**call).updated_count == 3
    assert len(buffer) == 1
    buffer.extend(TensorDict({"x": torch.arange(10, 12)}, [2]))
    assert buffer.update_if_present(**call).stale_count == 2


def test_more_records_than_room() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(4), consume_after_n_samples=1)
    buffer.extend(torch.arange(3))
    buffer.sample(2)
    buffer.extend(torch.arange(10, 21))
    assert len(buffer) == 4
    assert sorted(buffer.sample(4).tolist()) == [17, 18, 19, 20]


def test_add_and_empty() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(4), consume_after_n_samples=1)
    buffer.extend(torch.arange(4))
    assert buffer.add(torch.tensor(9)) == 0  # full of live records: around the ring
    first = int(buffer.sample(1, return_info=True)[1]["index"])
    assert buffer.add(torch.tensor(10)) == first
    buffer.empty()
    assert len(buffer) == 0
    assert buffer.add(torch.tensor(11)) == 0
    assert buffer.sample(5).tolist() == [11]


def test_the_state_goes_on() -> None:
    def make() -> ReplayBuffer:
        return ReplayBuffer(storage=LazyTensorStorage(16), consume_after_n_samples=2, batch_size=3)

    buffer, other = make(), make()
    buffer.extend(torch.arange(20))
    for _ in range(5):
        buffer.sample()
    other.load_state_dict(buffer.state_dict())
    assert len(other) == len(buffer)
    for step in range(10):
        assert torch.equal(buffer.sample(), other.sample())
        data = torch.arange(100 * step, 100 * step + 2)
        assert torch.equal(buffer.extend(data), other.extend(data))


def test_a_consuming_sampler_of_ones_own() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(4), sampler=ConsumingSampler(2), consume_after_n_samples=2)
    assert buffer.sampler.remaining(buffer.storage) == 0
    assert ReplayBuffer(sampler=ConsumingSampler).sampler.consumes
    assert ReplayBuffer(sampler=RandomSampler(), consume_after_n_samples=3).sampler.max_sample_count == 3
    buffer = ReplayBuffer(storage=LazyTensorStorage(4))
    buffer.extend(torch.arange(3))
    buffer.set_sampler(ConsumingSampler())
    assert len(buffer) == 3
    buffer.sample(2)
    assert len(buffer) == 1


class NoPlaces(Writer):
    """A writer that goes where it wants."""

    def add(self, data: Any) -> int:
        return 0

    def extend(self, data: Any) -> torch.Tensor:
        return torch.zeros(0, dtype=torch.int64)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"storage": LazyTensorStorage(4, ndim=2)}, ValueError, r"storage \(ndim 2\) must have one dimension"),
        ({"prefetch": 2, "batch_size": 2}, ValueError, r"prefetch \(2\) must be left out"),
        ({"shared": True}, ValueError, r"shared \(True\) must be left out"),
        ({"sampler": SamplerWithoutReplacement()}, ValueError, "must go with uniform draws; got SamplerWithoutRep"),
        ({"sampler": PrioritizedSampler(4, 0.6, 0.4)}, ValueError, "got PrioritizedSampler: leave the sampler out"),
        ({"sampler": ConsumingSampler(3)}, ValueError, r"consume_after_n_samples \(1\) must be .* got 3"),
        ({"writer": NoPlaces()}, TypeError, r"writer \(NoPlaces\) must be able to write to freed slots"),
        ({"consume_after_n_samples": 0}, ValueError, r"consume_after_n_samples \(0\) must be a positive integer"),
        ({"consume_after_n_samples": True}, TypeError, "must be a positive integer; got bool"),
        ({"consume_after_n_samples": 1.5}, TypeError, "must be a positive integer; got float"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ReplayBuffer(**{"storage": LazyTensorStorage(4), "consume_after_n_samples": 1, **settings})


def test_what_does_not_go_together_is_refused_later_too() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(4), consume_after_n_samples=1)
    with pytest.raises(ValueError, match="ndim 2"):
        buffer.set_storage(LazyTensorStorage(4, ndim=2))
    with pytest.raises(TypeError, match="NoPlaces"):
        buffer.set_writer(NoPlaces())
    with pytest.raises(ValueError, match="shared"):
        buffer.share()
    for settings, message in (
        ({"storage": LazyTensorStorage(4, ndim=2)}, "ndim 2"),
        ({"storage": LazyTensorStorage(4), "sample_unit": Transition()}, "sample_unit"),
        ({"storage": LazyTensorStorage(4), "prefetch": 2}, r"prefetch \(2\)"),
    ):
        plain = ReplayBuffer(**settings)
        with pytest.raises(ValueError, match=message):
            plain.set_sampler(ConsumingSampler())
        assert type(plain.sampler) is RandomSampler
