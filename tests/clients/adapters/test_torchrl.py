"""The calls that TorchRL's collectors and loops make of a buffer; TorchRL itself isn't needed."""

from __future__ import annotations

import torch
from tensordict import LazyStackedTensorDict, TensorDict

from clients.adapters import TorchRLBuffer
from replay_service import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictReplayBuffer
from tests.clients.adapters.near import rows_handle


def steps(count: int, start: int = 0) -> TensorDict:
    number = torch.arange(start, start + count)
    return TensorDict({"observation": number.float()[:, None], "next": {"reward": number.float()}}, batch_size=[count])


def test_batches_of_environments_are_stored_as_rows() -> None:
    owner = TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=8)
    buffer = TorchRLBuffer(rows_handle(owner))
    buffer.extend(steps(5))
    buffer.extend(torch.stack([steps(3, 100), steps(3, 200)]))
    # What a collector stacks lazily: environments by time.
    buffer.extend(LazyStackedTensorDict.lazy_stack([steps(2, 300), steps(2, 400)], dim=-1))
    buffer.add(steps(2, 500))
    buffer.add(steps(1, 600)[0])
    assert len(buffer) == buffer.write_count == 5 + 6 + 4 + 2 + 1
    expected = [0, 1, 2, 3, 4, 100, 101, 102, 200, 201, 202, 300, 400, 301, 401, 500, 501, 600]
    assert owner[:]["observation"].flatten().tolist() == expected
    assert buffer.batch_size == 8
    assert buffer.sample().batch_size == torch.Size([8])
    assert buffer.sample(3).batch_size == torch.Size([3])


def test_what_a_collector_writes_over_is_stored_as_it_was() -> None:
    owner = TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=8)
    buffer = TorchRLBuffer(rows_handle(owner))
    carrier = steps(2)
    for _ in range(3):
        buffer.add(carrier)
        carrier["observation"] += 10
    assert len(buffer) == 6
    assert owner[:]["observation"].flatten().tolist() == [0, 1, 10, 11, 20, 21]


def test_priorities() -> None:
    owner = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, storage=LazyTensorStorage(100), batch_size=8)
    buffer = TorchRLBuffer(rows_handle(owner))
    buffer.extend(steps(4))
    batch = buffer.sample(16)
    batch["td_error"] = (batch["index"] == 2).float()
    buffer.update_tensordict_priority(batch)
    buffer.update_priority(torch.arange(4), torch.tensor([0.0, 0.0, 0.0, 1.0]))
    assert set(buffer.sample(16)["index"].tolist()) == {3}


def test_it_pickles_as_its_handle() -> None:
    buffer = TorchRLBuffer(rows_handle(TensorDictReplayBuffer(storage=LazyTensorStorage(9))), extends_in_flight=2)
    again, arguments = buffer.__reduce__()
    assert arguments == (buffer.client, 2)
    assert again(*arguments).client is buffer.client
