"""Transforms and drawing ahead where the buffer lives elsewhere: what changes shapes is a new layout on the wire, on every route."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from clients import ReplayClient
from replay_service import LazyTensorStorage, SamplerWithoutReplacement, SliceSampler, TensorDictReplayBuffer
from replay_service.records import ServiceAddress
from replay_service.service.dispatch import Dispatch
from replay_service.transforms import CatFrames, Compose, DtypeCast, MultiStep, ObservationNorm, RenameKeys, SelectKeys
from replay_service.wire.inproc import InprocChannel
from tests.transforms.episode_steps import episode, episodes
from tests.wire.pair import connected
from tests.wire.serving import House

SLICES = {
    "storage": partial(LazyTensorStorage, 100),
    "sampler": partial(SliceSampler, slice_len=5, end_key=("next", "done")),
    "batch_size": 20,
}


@pytest.fixture(params=["inproc", "distributed"])
def hosted(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Gives a local buffer and a handle on it."""
    with ExitStack() as stack:

        def host(**settings: Any) -> tuple[TensorDictReplayBuffer, ReplayClient]:
            buffer: TensorDictReplayBuffer = TensorDictReplayBuffer(**settings)
            serve = Dispatch(buffer).serve
            inproc = request.param == "inproc"
            channel = InprocChannel(serve) if inproc else stack.enter_context(connected(serve)).channel()
            address = ServiceAddress("near", "tests", buffer.batch_size, "auto", merges_info=True)
            return buffer, stack.enter_context(ReplayClient(address, channel))

        yield host


def test_each_transform_that_is_added_gives_the_next_sample_another_layout(hosted: Any) -> None:
    buffer, client = hosted(**SLICES)
    client.extend(episodes(20, 9, 30))
    assert client.sample()["observation"].shape == (20, 2)
    buffer.append_transform(CatFrames(3, -1, "observation", "stack"))
    sample = client.sample()
    assert (sample["observation"].shape, sample["stack"].shape) == ((20, 2), (20, 6))
    own = sample["observation"][:, 0].view(4, 5)
    assert torch.equal(sample["stack"][:, 0].view(4, 5), own[:, [0, 0, 0, 1, 2]])
    buffer.append_transform(MultiStep(2, 0.5))
    buffer.append_transform(DtypeCast(torch.float32, torch.bfloat16, "stack"))
    sample, info = client.sample(10, return_info=True)
    assert sample["stack"].dtype == torch.bfloat16
    assert sample["gamma"].flatten().tolist() == [0.25, 0.25, 0.25, 0.25, 0.5] * 2
    assert torch.equal(sample["index"], info["index"])
    buffer.append_transform(lambda data: data.reshape(-1, 5)[:, 2:])
    sample, info = client.sample(return_info=True)
    assert (sample.batch_size, sample["stack"].shape) == ((4, 3), (4, 3, 6))
    assert torch.equal(info["index"], sample["index"])
    buffer.append_transform(SelectKeys("stack"))
    assert set(client.sample().keys()) == {"stack"}
    assert all(tensor.is_contiguous() for tensor in client.sample().values())


def test_reads_and_writes_by_index_go_through_transforms_too(hosted: Any) -> None:
    keys = {"in_keys": "observation", "in_keys_inv": "observation"}
    norm = Compose(ObservationNorm(1.0, 2.0, **keys), DtypeCast(torch.float64, torch.float32, **keys))
    buffer, client = hosted(storage=LazyTensorStorage(100), batch_size=4, transform=norm)
    data = episode(6)
    client.extend(data)
    client.add(episode(1)[0])
    assert buffer.storage.get(slice(None))["observation"].dtype == torch.float64
    assert buffer.storage.get(3)["observation"].tolist() == [1.0, 1.0]
    assert torch.equal(client[:6]["observation"], data["observation"])
    assert client[6]["observation"].tolist() == [0.0, 0.0]
    client[:2] = episode(8)[6:]
    client[2] = episode(8)[5]
    assert buffer.storage.get(slice(3))["observation"][:, 0].tolist() == [2.5, 3.0, 2.0]
    client.write_all(client.read_all_in_order())
    assert torch.equal(client[:3]["observation"][:, 0], torch.tensor([6.0, 7.0, 5.0]))
    sample = client.sample()
    assert torch.equal(sample["observation"], client[sample["index"]]["observation"])


def test_a_failing_transform_is_an_error_of_the_call_alone(hosted: Any) -> None:
    buffer, client = hosted(storage=LazyTensorStorage(100), batch_size=4)
    client.extend(episode(6))
    buffer.append_transform(RenameKeys("missing", "found"))
    for _ in range(2):
        with pytest.raises(KeyError, match="missing"):
            client.sample()
    buffer.append_transform(lambda data: 1 / 0, invert=True)
    with pytest.raises(Exception, match="division by zero"):
        client.extend(episode(2))
    assert len(client) == 6


def test_batches_that_are_drawn_ahead_come_through_the_handle_in_whole_epochs(hosted: Any) -> None:
    buffer, client = hosted(
        storage=LazyTensorStorage(100), sampler=SamplerWithoutReplacement(), batch_size=4, prefetch=3,
        transform=lambda data: data.set("twice", data["x"] * 2),
    )  # fmt: skip
    client.extend(TensorDict({"x": torch.arange(10)}, [10]))
    for _ in range(5):
        batches = [client.sample() for _ in range(3)]
        assert sorted(torch.cat([batch["x"] for batch in batches]).tolist()) == list(range(10))
        assert all(torch.equal(batch["twice"], batch["x"] * 2) for batch in batches)
    buffer.close()


@pytest.mark.parametrize("transport", ["ray", "distributed"])
def test_an_owner_adds_transforms_to_what_lives_in_an_actor(guest_house: House, transport: str) -> None:
    stack = partial(CatFrames, 3, -1, "observation", "stack")
    owner = guest_house.host(partial(TensorDictReplayBuffer, transform_factory=stack, **SLICES), transport)
    with owner.client() as client:
        client.extend(episodes(20, 9, 30))
        sample = client.sample()
        assert sample["stack"].shape == (20, 6)
        assert owner.append_transform(MultiStep(2, 0.5)) is None
        owner.insert_transform(0, Shape(torch.float16))
        sample = client.sample(10)
        assert (sample["observation"].dtype, sample["stack"].dtype) == (torch.float16, torch.float16)
        assert sample["gamma"].flatten().tolist() == [0.25, 0.25, 0.25, 0.25, 0.5] * 2
        owner.append_transform(lambda data: data.select("stack"))
        assert set(client.sample().keys()) == {"stack", "index"}
        routes = {meter["route"] for meter in client.stats()["service"]["verbs"].values()}
        assert routes == {transport}


class Shape:
    """Shaped as another library's transform: it can be called, and has `forward` and `inv`."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def forward(self, data: Any) -> Any:
        return data.set("observation", data.get("observation").to(self.dtype))

    def inv(self, data: Any) -> Any:
        return data.set("observation", data.get("observation").float())

    __call__ = forward
