"""References become frames on the way out of a buffer, whoever draws them and however."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from replay_service import (
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    ReplayBuffer,
    Sequence,
    SliceSampler,
    Storage,
    TensorDictReplayBuffer,
    VideoClipRef,
)
from replay_service.transforms import CatFrames, Compose, DecodeVideoTransform
from tests.video_files import drawn, needs_video, written

LENGTHS = (12, 20, 7)
Steps = tuple[TensorDict, Tensor]


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Steps:
    """Steps of three episodes, one file each, and their frames `[39, 3, 32, 48]`."""
    folder = tmp_path_factory.mktemp("episodes")
    paths = [written(folder / f"{n}.mp4", drawn(length, seed=n)) for n, length in enumerate(LENGTHS)]
    count = sum(LENGTHS)
    done = torch.zeros(count, 1, dtype=torch.bool)
    done[torch.tensor(LENGTHS).cumsum(0) - 1] = True
    made = {
        "frame": VideoClipRef.from_files(paths),
        "step": torch.arange(count),
        "episode": torch.arange(3).repeat_interleave(torch.tensor(LENGTHS)),
        "td_error": torch.arange(count) + 1.0,
        "next": {"done": done, "reward": torch.ones(count, 1)},
    }
    return TensorDict(made, [count]), torch.cat([drawn(length, seed=n) for n, length in enumerate(LENGTHS)])


def decode(**settings: Any) -> DecodeVideoTransform:
    return DecodeVideoTransform(in_keys=["frame"], out_keys=["pixels"], **settings)


@needs_video
@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, ListStorage, LazyStackStorage])
def test_samples_of_every_storage_carry_their_frames(steps: Steps, storage: type[Storage]) -> None:
    data, frames = steps
    buffer = TensorDictReplayBuffer(storage=storage(100), batch_size=16, transform=decode())
    buffer.extend(data[:20])
    buffer.extend(data[20:])
    for batch in (buffer.sample(), buffer.sample(), buffer[:], buffer[3:9]):
        assert torch.equal(batch["pixels"], frames[batch["step"]])
    assert torch.equal(buffer[30]["pixels"], frames[30])
    assert isinstance(buffer[30]["frame"], VideoClipRef)


@needs_video
@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
def test_the_documents_example(steps: Steps, kind: type[ReplayBuffer]) -> None:
    data, frames = steps
    rb = kind(
        storage=LazyTensorStorage(1000),
        sampler=SliceSampler(slice_len=4, traj_key="episode"),
        transform=Compose(
            DecodeVideoTransform(in_keys=["frame"], out_keys=["pixels"]),
            CatFrames(N=4, dim=-3, in_keys=["pixels"]),
        ),
    )
    rb.extend(data)
    batch = rb.sample(32)
    assert batch["pixels"].shape == (32, 12, 32, 48)
    assert batch["pixels"].is_contiguous()
    # At the edge of a slice the first frame is repeated.
    ages = torch.arange(4)[:, None] - torch.arange(3, -1, -1)
    for number in range(8):
        drawn_steps = batch["step"][4 * number : 4 * number + 4]
        expected = frames[drawn_steps[ages.clamp_min(0)]]
        assert torch.equal(batch["pixels"][4 * number : 4 * number + 4], expected.flatten(1, 2))


@needs_video
def test_windows_and_prioritized_draws(steps: Steps) -> None:
    data, frames = steps
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100),
        sampler=PrioritizedSampler(100, alpha=1.0, beta=1.0),
        sample_unit=Sequence(5),
        batch_size=6,
        transform=decode(dtype=torch.float32),
    )
    buffer.extend(data)
    batch = buffer.sample()
    assert (batch["pixels"].shape, batch["pixels"].dtype) == ((30, 3, 32, 48), torch.float32)
    assert torch.equal(batch["pixels"], frames[batch["step"]].float())
    buffer.update_tensordict_priority(batch)


@needs_video
def test_bins_and_lanes_keep_their_dimensions(steps: Steps) -> None:
    data, frames = steps
    clip = data["frame"].rebin(13, frames_per_bin=3)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20), batch_size=5, transform=decode())
    buffer.extend(TensorDict({"frame": clip, "bin": torch.arange(13)}, [13]))
    batch = buffer.sample()
    assert torch.equal(batch["pixels"], frames.view(13, 3, 3, 32, 48)[batch["bin"]])
    lanes = TensorDictReplayBuffer(storage=LazyTensorStorage(40, ndim=2), batch_size=5, transform=decode())
    lanes.extend(data[:20].reshape(2, 10))
    assert torch.equal(lanes[:]["pixels"], frames[:20].view(2, 10, 3, 32, 48))
    batch = lanes.sample()
    assert torch.equal(batch["pixels"], frames[batch["step"]])


@needs_video
def test_batches_drawn_ahead_decode_on_threads(steps: Steps) -> None:
    data, frames = steps
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=8, prefetch=3, transform=decode())
    buffer.extend(data)
    for _ in range(12):
        batch = buffer.sample()
        assert torch.equal(batch["pixels"], frames[batch["step"]])
    buffer.close()


@needs_video
def test_frames_may_take_the_place_of_references(steps: Steps) -> None:
    data, frames = steps
    batch = DecodeVideoTransform("frame")(data[5:9])
    assert torch.equal(batch["frame"], frames[5:9])
    assert isinstance(data["frame"], VideoClipRef)


def test_state_dicts_bring_the_files_along() -> None:
    storage = LazyTensorStorage(10)
    buffer = TensorDictReplayBuffer(storage=storage, batch_size=2)
    buffer.extend(TensorDict({"frame": VideoClipRef(("a", "b"), [1, 2, 3], [0, 1, 1])}, [3]))
    other = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=2)
    other.load_state_dict(buffer.state_dict())
    assert other[:]["frame"].source == ["a", "b", "b"]


@pytest.mark.parametrize("memory", [LazyTensorStorage, LazyMemmapStorage])
def test_a_million_references_take_sixteen_bytes_each(memory: type[LazyTensorStorage]) -> None:
    storage = memory(1_000_000)
    buffer = ReplayBuffer(storage=storage, batch_size=4)
    paths = [f"/data/{n:04}.mp4" for n in range(1000)]
    buffer.extend(VideoClipRef.from_files(paths, num_frames_per_file=1000))
    assert storage.size_bytes() == 16_000_000
    sample = buffer.sample()
    assert isinstance(sample, VideoClipRef)
    index = sample.frame_index + 1000 * torch.tensor([paths.index(path) for path in _each(sample)])
    assert torch.equal(buffer[index].frame_index, sample.frame_index)


def _each(ref: VideoClipRef) -> list[str]:
    return [ref.sources[place] for place in ref.file_id.tolist()]


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: DecodeVideoTransform([]), ValueError, "in_keys"),
        (lambda: DecodeVideoTransform(["a"], ["b", "c"]), ValueError, r"out_keys \(2\)"),
        (lambda: DecodeVideoTransform("a", decode="there"), ValueError, r"decode \('there'\)"),
        (lambda: DecodeVideoTransform("a", dtype="uint8"), TypeError, "dtype"),
        (lambda: DecodeVideoTransform("a")(TensorDict({"a": torch.zeros(2)}, [2])), TypeError, "VideoClipRef"),
        (lambda: DecodeVideoTransform("a")(TensorDict({}, [2])), KeyError, r"key \(a\)"),
    ],
)
def test_refused(make: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        make()
