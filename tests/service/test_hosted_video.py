"""References through handles, on every route, decoded on either side of the wire."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from clients import ReplayClient
from replay_service import (
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SliceSampler,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    VideoClipRef,
)
from replay_service.buffer.video.decoders import CACHE
from replay_service.records import ServiceAddress
from replay_service.service.dispatch import Dispatch
from replay_service.service.telling import Told
from replay_service.sources import SOURCES, SOURCES_KEY, SourceTable, words_leaf
from replay_service.transforms import CatFrames, Compose, DecodeVideoTransform
from replay_service.wire.inproc import InprocChannel
from replay_service.wire.message import Message
from replay_service.wire.verbs import Verb
from tests.conftest import RaySession
from tests.service.processes import Worker
from tests.video_files import drawn, needs_video, written
from tests.wire.pair import connected
from tests.wire.serving import House

LENGTHS = (12, 20, 8)
CLIP = 4


def steps_of(paths: list[str]) -> TensorDict:
    """The steps of episodes, one file each."""
    count = sum(LENGTHS)
    done = torch.zeros(count, 1, dtype=torch.bool)
    done[torch.tensor(LENGTHS).cumsum(0) - 1] = True
    frame = VideoClipRef.from_files(paths, num_frames_per_file=LENGTHS)
    return TensorDict({"frame": frame, "step": torch.arange(count), "next": {"done": done}}, [count])


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> tuple[TensorDict, Tensor]:
    """Steps of three episodes, and their frames."""
    folder = tmp_path_factory.mktemp("episodes")
    paths = [written(folder / f"{n}.mp4", drawn(length, seed=n)) for n, length in enumerate(LENGTHS)]
    return steps_of(paths), torch.cat([drawn(length, seed=n) for n, length in enumerate(LENGTHS)])


# -- without a process of its own -----------------------------------------------------------------------------------


@pytest.fixture(params=["inproc", "distributed"])
def near(request: pytest.FixtureRequest) -> Iterator[tuple[TensorDictReplayBuffer, ReplayClient]]:
    """A buffer of references, and a handle on it."""
    writer = TensorDictRoundRobinWriter(track_generations=True)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(50), batch_size=8, writer=writer)
    serve = Dispatch(buffer).serve
    with ExitStack() as stack:
        inproc = request.param == "inproc"
        channel = InprocChannel(serve) if inproc else stack.enter_context(connected(serve)).channel()
        address = ServiceAddress("near", "tests", 8, "auto", merges_info=True)
        yield buffer, stack.enter_context(ReplayClient(address, channel))


def test_every_call_carries_references(near: tuple[TensorDictReplayBuffer, ReplayClient]) -> None:
    buffer, client = near
    data = steps_of(["a", "b", "c"])
    client.extend(data[:30])
    for row in data[30:]:
        client.add(row)
    assert torch.equal(buffer[:]["frame"].frame_index, data["frame"].frame_index)
    sample, info = client.sample(20, return_info=True)
    assert sample["frame"].source == data["frame"][info["index"]].source
    assert client[33]["frame"].source == "c"
    assert client[10:14]["frame"].source == ["a", "a", "b", "b"]
    assert client["frame"].sources == ("a", "b", "c")
    assert client.read_all_in_order(12)["frame"].source == "a"
    client[0] = data[39]
    assert client[0]["frame"].source == "c"
    client.write_all(data[::1])
    assert [found["frame"].source for found in client.query()] == ["a", "b", "c"]
    batch = client.sample(4)
    patch = {"frame": VideoClipRef("patched", torch.arange(4))}
    result = client.update_if_present(
        index=batch["index"], generation=batch["index_generation"], patch=TensorDict(patch, [4])
    )
    assert result.updated.any()
    assert buffer[batch["index"]]["frame"].source == "patched"


def _spec_of_references() -> Any:
    storage = LazyTensorStorage(2)
    TensorDictReplayBuffer(storage=storage).extend(TensorDict({"frame": VideoClipRef("x", [0])}, [1]))
    return storage.spec()


def test_a_table_is_told_once() -> None:
    spec = _spec_of_references()
    known = len(SOURCES)
    words = [f"told {n}" for n in range(3)]
    SOURCES.add(words[:2])
    leaves, arguments = Told(SOURCES.token, known).news(spec)
    assert leaves[0][0] == SOURCES_KEY
    assert torch.equal(leaves[0][1], words_leaf(SOURCES.since(known)))
    assert arguments == (0, SOURCES.token, len(SOURCES))
    assert Told(*arguments[1:]).news(spec)[0][0][1].numel() == 0
    SOURCES.add(words)
    assert torch.equal(Told(*arguments[1:]).news(spec)[0][0][1], words_leaf(words[2:]))
    everything = words_leaf(SOURCES.since(0))
    for stranger in (Told(), Told(SourceTable().token, known), Told(SOURCES.token, 1 << 40), Told(SOURCES.token, -1)):
        assert torch.equal(stranger.news(spec)[0][0][1], everything)
    assert Told(SOURCES.token, known, left=2).news("t") == ([], (2, SOURCES.token, known))


def test_sixteen_bytes_a_frame_travel() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(5000), batch_size=8)
    paths = [f"/data/{n:04}.mp4" for n in range(500)]
    buffer.extend(TensorDict({"frame": VideoClipRef.from_files(paths, num_frames_per_file=10)}, [5000]))
    channel = InprocChannel(Dispatch(buffer).serve)
    client = ReplayClient(ServiceAddress("near", "tests", 8), channel)
    client.sample(1000)
    request = Message(Verb.SAMPLE, arguments=(1000, 0, SOURCES.token, len(SOURCES)))
    reply = channel.call(request, 5.0)
    frames = reply.tensor("data", "frame", "frame_index").nbytes + reply.tensor("data", "frame", "file_number").nbytes
    assert frames == 16_000
    assert reply.tensor(*SOURCES_KEY).numel() == 0


# -- in a Ray actor -------------------------------------------------------------------------------------------------


def _recipe(kind: type[ReplayBuffer] = TensorDictReplayBuffer, **settings: Any) -> Any:
    return partial(kind, storage=partial(LazyTensorStorage, 100), batch_size=16, **settings)


@needs_video
def test_a_collector_and_a_learner_that_never_met(
    ray_session: RaySession, guest_house: House, episodes: tuple[TensorDict, Tensor]
) -> None:
    """The files are told to the service by one process, and by the service to another one; on both routes."""
    data, frames = episodes
    owner = guest_house.host(_recipe())
    owner.extend(data)
    worker = Worker(ray_session, owner.client(), LEARNER)
    try:
        total = int(worker.printed(60))
    finally:
        worker.end()
    assert total == int(frames.sum())


LEARNER = """
import dataclasses
from clients import ReplayClient
for transport in ("ray", "distributed"):
    client = ReplayClient(dataclasses.replace(client.address, transport=transport))
    batch = client.sample(64)
    frames = client[:]["frame"].decode()
    assert (frames[batch["index"]] == batch["frame"].decode()).all()
print(int(frames.sum()))
"""


@needs_video
@pytest.mark.parametrize("kind", [TensorDictReplayBuffer, ReplayBuffer])
@pytest.mark.parametrize(("place", "transport"), [("service", "auto"), ("client", "ray")])
def test_slices_are_decoded_where_it_was_said(
    guest_house: House,
    episodes: tuple[TensorDict, Tensor],
    kind: type[ReplayBuffer],
    place: Any,
    transport: str,
) -> None:
    data, frames = episodes
    stack = Compose(DecodeVideoTransform("frame", "pixels", decode=place), CatFrames(N=3, dim=-3))
    recipe = _recipe(kind, sampler=partial(SliceSampler, slice_len=CLIP), transform=stack)
    with guest_house.host(recipe, transport).client() as client:
        client.extend(data)
        CACHE.clear()
        batch, info = client.sample(return_info=True)
        assert len(CACHE) == (0 if place == "service" else len(batch["frame"].sources))
        _assert_stacks(batch, frames)
        assert torch.equal(info["index"], batch["index"] if kind is TensorDictReplayBuffer else batch["step"])
        assert torch.equal(client[3:9]["pixels"][:, -3:], frames[3:9])
        assert torch.equal(client[5]["pixels"], frames[5].repeat(3, 1, 1))
        assert torch.equal(client["frame"].frame_index, data["frame"].frame_index)
        with client.prefetch(depth=3) as batches:
            for batch in itertools.islice(batches, 8):
                _assert_stacks(batch, frames)
        assert torch.equal(client.submit_sample(8).result()["step"].diff()[:3], torch.ones(3, dtype=torch.int64))


def _assert_stacks(batch: TensorDict, frames: Tensor) -> None:
    ages = (torch.arange(CLIP)[:, None] - torch.arange(2, -1, -1)).clamp_min(0)
    for first in range(0, batch.shape[0], CLIP):
        steps = batch["step"][first : first + CLIP]
        assert torch.equal(batch["pixels"][first : first + CLIP], frames[steps[ages]].flatten(1, 2))


@needs_video
def test_a_transform_that_is_added_later_runs_at_clients_too(
    guest_house: House, episodes: tuple[TensorDict, Tensor]
) -> None:
    data, frames = episodes
    owner = guest_house.host(_recipe())
    with owner.client() as client:
        client.extend(data)
        assert "pixels" not in client.sample()
        owner.append_transform(DecodeVideoTransform("frame", "pixels", decode="client"))
        batch = client.sample()
        assert torch.equal(batch["pixels"], frames[batch["step"]])
        owner.append_transform(lambda batch: batch.exclude("frame"))
        assert "frame" not in client.sample()
        assert torch.equal(client["pixels"], frames)
        with pytest.raises(KeyError):
            client["frame"]


@needs_video
def test_errors_of_the_service_name_file_and_rows(episodes: tuple[TensorDict, Tensor], tmp_path: Path) -> None:
    data, _ = episodes
    decode = DecodeVideoTransform("frame", "pixels")
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(9), batch_size=4, transform=decode)
    client = ReplayClient(ServiceAddress("near", "tests", 4), InprocChannel(Dispatch(buffer).serve))
    client.extend(data[:3])
    broken = data[3:5].clone()
    broken["frame"] = VideoClipRef(tmp_path / "gone.mp4", [0, 1])
    client.extend(broken)
    with pytest.raises(OSError, match=r"frame: .*gone\.mp4.*rows \[3, 4\]"):
        client[:]
    assert client[:3]["pixels"].shape[0] == 3


def test_lists_of_records_travel_with_their_files() -> None:
    buffer = TensorDictReplayBuffer(storage=ListStorage(100), batch_size=16)
    client = ReplayClient(ServiceAddress("near", "tests", 16), InprocChannel(Dispatch(buffer).serve))
    data = steps_of(["a", "b", "c"])
    client.extend(data)
    sample = client.sample()
    assert sample["frame"].source == data["frame"][sample["step"]].source
