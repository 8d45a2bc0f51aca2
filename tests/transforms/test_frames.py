"""Stacked frames, beside a walk step by step and as slices are sampled."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from replay_service import LazyTensorStorage, ReplayBuffer, SliceSampler, TensorDictReplayBuffer
from replay_service.transforms import CatFrames, Compose
from tests.transforms.episode_steps import episode, episodes


def walked(lengths: tuple[int, ...], frames: int, constant: float | None) -> list[list[float]]:
    """The stacked first column of each step's observations, one step after the other."""
    stacks = []
    for number, length in enumerate(lengths):
        seen = [100.0 * number + step for step in range(length)]
        for step in range(length):
            history = seen[max(0, step - frames + 1) : step + 1]
            missing = [seen[0] if constant is None else constant] * (frames - len(history))
            stacks.append(missing + history)
    return stacks


@pytest.mark.parametrize("frames", [1, 2, 4])
@pytest.mark.parametrize("constant", [None, -1.0])
def test_frames_are_those_of_the_same_episode(frames: int, constant: float | None) -> None:
    padding = {} if constant is None else {"padding": "constant", "padding_value": constant}
    out = CatFrames(frames, -1, "observation", "stack", **padding)(episodes(3, 1, 5))  # type: ignore[arg-type]
    assert out["stack"].shape == (9, 2 * frames)
    assert out["stack"][:, ::2].tolist() == walked((3, 1, 5), frames, constant)


def test_the_next_entry_goes_on_where_the_root_ends() -> None:
    keys = ["observation", ("next", "observation")]
    out = CatFrames(3, -1, keys)(episode(4))
    following = out["next", "observation"]
    # Of the first step: the padded first frame twice, and what it led to; as an environment would stack them.
    assert following[:, ::2].tolist() == [[0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]
    assert torch.equal(following[:-1], out["observation"][1:])


def test_images_are_stacked_along_their_channels() -> None:
    data = TensorDict(
        {"pixels": torch.arange(4).view(4, 1, 1, 1).expand(4, 3, 5, 5), ("next", "done"): torch.zeros(4, 1).bool()}, [4]
    )
    out = CatFrames(2, -3)(data)["pixels"]
    assert out.shape == (4, 6, 5, 5)
    assert out[2, :, 0, 0].tolist() == [1, 1, 1, 2, 2, 2]


def test_lines_are_stacked_by_themselves() -> None:
    lines = torch.stack([episode(3), episode(3, 1)])  # type: ignore[call-overload]
    out = CatFrames(2, -1, "observation")(lines)
    assert out.shape == (2, 3)
    assert out["observation"][..., ::2].tolist() == [[[0, 0], [0, 1], [1, 2]], [[100, 100], [100, 101], [101, 102]]]


@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
@pytest.mark.parametrize("composed", [False, True])
def test_slices_are_padded_at_their_own_edges(kind: type[ReplayBuffer], composed: bool) -> None:
    frames = CatFrames(3, -1, "observation", "stack")
    rb = kind(
        storage=LazyTensorStorage(100),
        sampler=SliceSampler(slice_len=4, traj_key="episode"),
        batch_size=32,
        transform=Compose(frames) if composed else frames,
        generator=torch.Generator().manual_seed(0),
    )
    data = episodes(20, 9, 30)
    data["episode"] = torch.tensor([0] * 20 + [1] * 9 + [2] * 30)
    rb.extend(data)
    sample = rb.sample()
    own = sample["observation"][:, 0].view(8, 4)
    stacks = sample["stack"][:, ::2].view(8, 4, 3)
    for lag in range(3):
        places = (torch.arange(4) - lag).clamp_min(0)
        assert torch.equal(stacks[:, :, 2 - lag], own[:, places])
    assert rb[[0, 1, 2]]["stack"][:, ::2].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2]]


def test_what_is_said_of_a_sample_stays_beside_it() -> None:
    data, said = episodes(6, 4), {("next", "truncated"): torch.ones(10, 1).bool(), "index": torch.arange(3)}
    sampled = CatFrames(2, -1, "observation", "stack").sampled(data, said)
    assert torch.equal(sampled["stack"][:, 0], sampled["stack"][:, 2])  # each step is a slice of its own
    assert set(sampled.keys(True, True)) == {*data.keys(True, True), "stack"}


def test_a_single_record_is_its_own_padding() -> None:
    out = CatFrames(3, -1, "observation")(episode(4)[2])
    assert out.batch_size == ()
    assert out["observation"].tolist() == [2.0] * 6


def test_mistakes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"dim .0. must be a negative integer"):
        CatFrames(2, 0)
    with pytest.raises(ValueError, match="padding"):
        CatFrames(2, -1, padding="zeros")
    with pytest.raises(ValueError, match=r"N .0."):
        CatFrames(0, -1)
    with pytest.raises(ValueError, match=r"dim .-3. must be one of an entry's own"):
        CatFrames(2, -3, "observation")(episode(3))
    with pytest.raises(ValueError, match="not be given together"):
        CatFrames(2, -1, done_key="done", done_keys="done")
