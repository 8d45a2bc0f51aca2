"""Returns over several steps, beside a walk step by step."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from replay_service import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from replay_service.transforms import MultiStep
from tests.transforms.episode_steps import episode, episodes

GAMMA = 0.9


def check(before: TensorDict, after: TensorDict, n_steps: int, last: list[int]) -> None:
    """Each step of `after` against a loop over `before`; `last` is the last step of each step's run."""
    for step in range(before.batch_size[0]):
        ahead = min(n_steps, last[step] - step + 1)
        rewards = before["next", "reward"].flatten()[step : step + ahead].tolist()
        expected = sum(GAMMA**power * reward for power, reward in enumerate(rewards))
        assert after["next", "reward"][step].item() == pytest.approx(expected, rel=1e-6)
        assert after["gamma"][step].item() == pytest.approx(GAMMA**ahead, rel=1e-6)
        assert after["steps_to_next_obs"][step].item() == ahead
        for name in ("observation", "done", "terminated", "truncated"):
            assert torch.equal(after["next", name][step], before["next", name][step + ahead - 1])
        assert torch.equal(after["observation"][step], before["observation"][step])
        assert torch.equal(after["next", "original_reward"][step], before["next", "reward"][step])


@pytest.mark.parametrize("n_steps", [1, 3, 10])
def test_returns_and_next_observations_stay_within_the_episode(n_steps: int) -> None:
    data = episodes(4, 1, 7)
    after = MultiStep(n_steps, GAMMA)(data)
    check(data, after, n_steps, [3] * 4 + [4] + [11] * 7)
    assert "gamma" not in data.keys()  # noqa: SIM118 - a TensorDict has no such `in`


def test_sampled_slices_look_no_further_than_their_own_end() -> None:
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100),
        sampler=SliceSampler(slice_len=5, end_key=("next", "done")),
        batch_size=40,
        transform=MultiStep(3, GAMMA),
        generator=torch.Generator().manual_seed(1),
    )
    rb.extend(episodes(20, 9, 30))
    sample, info = rb.sample(return_info=True)
    stored = rb.storage.get(info["index"])
    last = [slice_ * 5 + 4 for slice_ in range(8) for _ in range(5)]
    for name in ("done", "truncated"):  # at the ends of slices as the sampler says, not as stored
        stored["next", name][4::5] = True
    check(stored, sample, 3, last)


def test_on_the_way_in_random_samples_are_n_step_transitions() -> None:
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(100), batch_size=16)
    rb.append_transform(MultiStep(3, GAMMA), invert=True)
    data = episodes(6, 6)
    rb.extend(data)
    check(data, rb.storage.get(slice(None)), 3, [5] * 6 + [11] * 6)
    sample = rb.sample()
    assert torch.equal(
        sample["gamma"].double().log().div(torch.tensor(GAMMA).double().log()).round().long(),
        sample["steps_to_next_obs"],
    )


def test_lines_and_several_rewards() -> None:
    lines = torch.stack([episode(4), episode(4, 1)])  # type: ignore[call-overload]
    lines["next", "cost"] = torch.ones(2, 4)
    out = MultiStep(2, 0.5, reward_keys=[("next", "reward"), ("next", "cost")])(lines)
    assert out.batch_size == (2, 4)
    assert out["next", "cost"].tolist() == [[1.5, 1.5, 1.5, 1.0]] * 2
    assert out["next", "reward"][1].flatten().tolist() == [2.0, 3.5, 5.0, 4.0]


def test_padding_is_no_reward() -> None:
    data = torch.cat([episode(3), episode(3)[-1:].repeat(2)])  # type: ignore[call-overload]
    data["collector", "mask"] = torch.tensor([True] * 3 + [False] * 2)
    out = MultiStep(4, 1.0, done_key=("next", "truncated"))(data)
    assert out["next", "reward"].flatten()[:3].tolist() == [6.0, 5.0, 3.0]


def test_mistakes_are_refused() -> None:
    with pytest.raises(ValueError, match="n_steps"):
        MultiStep(0, 0.9)
    with pytest.raises(ValueError, match=r"gamma .1.5. must be from 0 to 1"):
        MultiStep(2, 1.5)
    with pytest.raises(ValueError, match="must lie under 'next'"):
        MultiStep(2, 0.9, reward_keys="reward")
    with pytest.raises(ValueError, match="single record"):
        MultiStep(2, 0.9)(episode(3)[0])
    with pytest.raises(KeyError, match=r"next\.score"):
        MultiStep(2, 0.9, reward_keys=("next", "score"))(episode(3))
