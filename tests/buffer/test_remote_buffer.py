"""Results that can be sent away as they are."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from replay_service import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RemoteTensorDictReplayBuffer,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)
from tests.rows import assert_rows_are_whole, stamped_rows


def buffer(**settings: Any) -> RemoteTensorDictReplayBuffer:
    """With stamps and priorities, so that samples carry as much as they can."""
    made: RemoteTensorDictReplayBuffer = RemoteTensorDictReplayBuffer(
        **{
            "storage": LazyTensorStorage(50),
            "sampler": PrioritizedSampler(50, alpha=1.0, beta=1.0),
            "writer": TensorDictRoundRobinWriter(track_generations=True),
            "batch_size": 8,
            **settings,
        }
    )
    return made


def tensors(data: Any) -> Iterator[Tensor]:
    if isinstance(data, Tensor):
        yield data
    elif isinstance(data, dict):
        for value in data.values():
            yield from tensors(value)
    elif isinstance(data, tuple | list):
        for value in data:
            yield from tensors(value)
    elif data is not None and not isinstance(data, int):
        yield from data.values(True, True)


def test_everything_that_is_returned_is_small_contiguous_and_its_own() -> None:
    rb = buffer()
    index = rb.extend(stamped_rows(40))
    results = [
        index,
        rb.add(stamped_rows(1)[0]),
        rb.sample(),
        rb.sample(return_info=True),
        rb[3],
        rb[2:5],
        rb["action"],
        rb.read_all_in_order(4),
        rb.update_priority(index, 1.0, generation=rb.writer.generations_of(index)).updated,
    ]
    for result in results:
        for tensor in tensors(result):
            assert tensor.device.type == "cpu"
            assert tensor.is_contiguous()
            assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def test_samples_are_those_of_a_local_buffer() -> None:
    rb = buffer(generator=torch.Generator().manual_seed(0))
    local = TensorDictReplayBuffer(
        storage=LazyTensorStorage(50), sampler=PrioritizedSampler(50, alpha=1.0, beta=1.0), batch_size=8,
        writer=TensorDictRoundRobinWriter(track_generations=True), generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    for either in (rb, local):
        either.extend(stamped_rows(40))
    found, expected = rb.sample(), local.sample()
    assert_rows_are_whole(found)
    assert (found == expected).all()
    assert set(found.keys()) == set(expected.keys())
    found["td_error"] = torch.rand(8)
    rb.update_tensordict_priority(found)
    again = pickle.loads(pickle.dumps(rb.sample(return_info=True)))
    assert torch.equal(again[0]["index"], again[1]["index"])


@pytest.mark.parametrize("include_info", [None, True, False])
def test_info_is_included_unless_it_is_not_wanted(include_info: bool | None) -> None:
    rb = buffer()
    rb.extend(stamped_rows(40))
    names = {"index", "index_generation", "priority_weight"}
    batch = rb.sample(4, include_info)
    assert batch.batch_size == (4,)
    assert (names & set(batch.keys())) == (set() if include_info is False else names)
    data, info = rb.sample(4, include_info, True)
    assert names <= set(info)
    assert torch.equal(rb[info["index"]]["action"], data["action"])


def test_what_is_no_tensor_is_returned_as_it_is() -> None:
    rb = RemoteTensorDictReplayBuffer(storage=ListStorage(10), batch_size=2)
    rb.extend([TensorDict({"x": torch.zeros(length)}) for length in (1, 2)])
    assert {record["x"].numel() for record in rb[:]} == {1, 2}
    assert isinstance(rb.add(TensorDict({"x": torch.zeros(3)})), int)


def test_it_can_be_called_from_another_process(tmp_path: Any) -> None:
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,))
    process.start()
    try:
        for call, arguments in (("extend", (stamped_rows(20),)), ("sample", (4, None, True))):
            ours.send((call, arguments))
            assert ours.poll(60)
            answer = ours.recv()
    finally:
        ours.send(None)
        process.join(30)
    data, info = answer
    assert_rows_are_whole(data)
    assert torch.equal(data["index"], info["index"])


def _serve(pipe: Any) -> None:
    rb = buffer()
    while (asked := pipe.recv()) is not None:
        call, arguments = asked
        pipe.send(getattr(rb, call)(*arguments))
