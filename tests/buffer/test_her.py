"""The buffer for goals: what its samples are, beside other parts, after a reload, and what it refuses."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from replay_service import (
    CompressedListStorage,
    EmptyBufferError,
    HindsightStrategy,
    LayoutError,
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    Sequence,
    SliceSampler,
    TensorDictMaxValueWriter,
    TensorDictRoundRobinWriter,
)
from tests.buffer.goal_rows import NOT_YET, assert_relabelled, distance, goal_rows, her


def test_strategies_are_their_names() -> None:
    assert [f"{one}" for one in HindsightStrategy] == ["future", "final", "episode", "random"]
    assert her(strategy=HindsightStrategy.FINAL).strategy == her(strategy="final").strategy == "final"


@pytest.mark.parametrize("storage", [LazyTensorStorage, LazyMemmapStorage, ListStorage, CompressedListStorage])
@pytest.mark.parametrize("strategy", ["future", "episode"])
def test_what_is_stored_stays_as_it_is(storage: type, strategy: str) -> None:
    buffer = her(storage=storage(30), strategy=strategy)
    for number in range(0, 40, 2):
        buffer.extend(goal_rows([7, 6], first=number))
        before = buffer[:]
        changed = assert_relabelled(buffer.sample(), strategy)
        assert bool(changed.any())
        assert not bool(changed.all())
        assert bool((buffer[:] == before).all())
    assert "goal_index" not in buffer[:]


def test_a_seed_decides_and_the_global_generator_is_left_alone() -> None:
    rows, before = goal_rows([5, 6, 7]), torch.get_rng_state()
    first, second, third = (her(rows=rows, seed=seed) for seed in (1, 1, 2))
    for _ in range(5):
        drawn = first.sample()
        assert bool((drawn == second.sample()).all())
        assert not bool((drawn["desired_goal"] == third.sample()["desired_goal"]).all())
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("prefetch", [None, 2])
def test_it_goes_on_after_a_reload_as_if_nothing_had_been(prefetch: int | None) -> None:
    settings: dict[str, Any] = {"sampler": SamplerWithoutReplacement(), "prefetch": prefetch}
    buffer = her(40, **copy.deepcopy(settings))
    for number in range(9):
        buffer.extend(goal_rows([9], first=number, closed=number < 8))
    buffer.sample()
    other = her(40, seed=5, **settings)
    other.extend(goal_rows([3], first=50))
    other.load_state_dict(buffer.state_dict())
    for turn in range(100):
        one, two = buffer.sample(), other.sample()
        assert_relabelled(one)
        assert bool((one == two).all())
        if turn % 40 == 20:
            # What was unfinished when it was saved goes on first.
            more = [goal_rows([12], first=8)[9:]] if turn == 20 else []
            rows = torch.cat([*more, goal_rows([2, 4], first=60 + turn)])
            buffer.extend(rows)
            other.extend(rows)
    buffer.close()
    other.close()


def test_a_pickled_buffer_goes_on() -> None:
    buffer = her(20, goal_rows([9, 9, 9]))
    other = pickle.loads(pickle.dumps(buffer))
    assert bool((buffer.sample() == other.sample()).all())


def test_emptied_and_filled_again() -> None:
    buffer = her(20, goal_rows([9, 9, 9]), her_ratio=1.0)
    buffer.empty()
    with pytest.raises(EmptyBufferError):
        buffer.sample()
    buffer.extend(goal_rows([2, 3], first=7))
    sample = buffer.sample()
    assert bool(assert_relabelled(sample).all())
    assert set(sample["desired_goal"][:, 0].tolist()) == {7.0, 8.0}


def test_batches_drawn_ahead_follow_what_changes_in_place(wait_until: Callable[..., Any]) -> None:
    buffer = her(rows=goal_rows([8] * 4), her_ratio=1.0, prefetch=2)
    buffer.sample()
    wait_until(lambda: buffer.stats()["prefetch_queue_size"] == 2)
    buffer.set_(("next", "done"), torch.tensor([True]))  # every step is an episode now
    for _ in range(3):
        sample = buffer.sample()
        assert torch.equal(sample["goal_index"], sample["index"])
        assert torch.equal(sample["desired_goal"], sample["achieved_goal"])
    buffer.close()


# -- with other parts ---------------------------------------------------------------------------------------------------


def test_slices_keep_their_order_and_flags() -> None:
    buffer = her(30, sampler=SliceSampler(slice_len=4), her_ratio=0.5)
    for number in range(8):
        buffer.extend(goal_rows([7], first=number))
        sample = buffer.sample()
        assert_relabelled(sample)
        assert sample["step"].view(-1, 4).diff(dim=1).eq(1).all()
        assert sample["next", "truncated"].view(-1, 4)[:, -1].all()


def test_windows_are_relabelled_row_by_row() -> None:
    buffer = her(30, sample_unit=Sequence(3, burn_in=1))
    for number in range(8):
        buffer.extend(goal_rows([7], first=number))
        sample = buffer.sample(20)
        assert sample.shape == (80,)
        changed = assert_relabelled(sample)
        assert bool(changed.any())
        assert sample["sequence_id"].tolist() == [i for i in range(20) for _ in range(4)]


def test_priorities_and_stamps_stay_those_of_the_drawn_rows() -> None:
    buffer = her(
        20,
        sampler=PrioritizedSampler(20, 1.0, 1.0, eps=0.0),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        her_ratio=1.0,
    )
    buffer.extend(goal_rows([10, 10]))
    buffer.update_priority(torch.arange(20), torch.arange(20) == 4)
    sample = buffer.sample()
    assert sample["index"].tolist() == [4] * 64
    assert sample["index_generation"].tolist() == [0] * 64
    assert bool(assert_relabelled(sample).all())
    sample["td_error"] = torch.ones(64)
    buffer.update_tensordict_priority(sample)


def test_transforms_see_the_new_goals() -> None:
    seen: list[TensorDictBase] = []

    def look(batch: TensorDictBase) -> TensorDictBase:
        seen.append(batch)
        return batch.set("twice", 2 * batch["next", "reward"])

    sample = her(rows=goal_rows([5]), her_ratio=1.0, transform=look).sample(8)
    assert bool(assert_relabelled(sample).all())
    assert torch.equal(sample["twice"], 2 * sample["next", "reward"])


def test_keys_are_the_users() -> None:
    rows = goal_rows([5, 4])
    rows["goals", "wanted"] = rows["desired_goal"]
    rows["goals", "reached"] = rows["next", "achieved_goal"]
    rows["price"] = rows["next", "reward"].squeeze(1)
    rows["over"] = rows["next", "done"]
    rows = rows.exclude("next", "desired_goal", "achieved_goal")
    keys = {"goal_key": ("goals", "wanted"), "achieved_goal_key": ("goals", "reached"), "reward_key": "price"}
    sample = her(rows=rows, her_ratio=1.0, strategy="final", end_key="over", **keys).sample(50)
    last = torch.where(sample["number"] == 0, 5.0, 4.0)
    assert torch.equal(sample["goals", "wanted"][:, 1], last)
    assert torch.equal(sample["price"], last - sample["step"] - 1)


def test_goals_of_what_steps_led_to() -> None:
    sample = her(
        rows=goal_rows([5]), her_ratio=1.0, strategy="final", achieved_goal_key=("next", "achieved_goal")
    ).sample(50)
    assert set(sample["desired_goal"][:, 1].tolist()) == {5.0}
    assert torch.equal(sample["next", "reward"][:, 0], 4.0 - sample["step"])


# -- reward functions -----------------------------------------------------------------------------------------------------


def test_a_function_of_rows_sees_them_with_their_new_goal() -> None:
    seen: list[TensorDictBase] = []

    def reward(batch: TensorDictBase) -> Tensor:
        seen.append(batch)
        return (batch["achieved_goal"] - batch["desired_goal"]).norm(dim=-1, keepdim=True)

    sample = her(reward_fn=reward, rows=goal_rows([6, 6])).sample()
    changed = sample["goal_index"] >= 0
    assert [batch.shape for batch in seen] == [(int(changed.sum()),)], "once, and only for rows that are relabelled"
    assert torch.equal(seen[0]["desired_goal"], sample["desired_goal"][changed])
    ahead = (sample["desired_goal"] - sample["achieved_goal"])[changed, 1]
    assert torch.equal(sample["next", "reward"][changed, 0], ahead)


@pytest.mark.parametrize(
    "reward",
    [
        lambda *goals: (goals[0] == goals[1]).all(-1),
        lambda achieved, desired, scale=1.0: scale * (achieved == desired).all(-1, keepdim=True),
        lambda achieved, desired: (achieved == desired).all(-1).double().numpy(),
        lambda rows, scale=1.0: scale * (rows["next", "achieved_goal"] == rows["desired_goal"]).all(-1),
    ],
)
def test_ways_to_say_a_reward(reward: Any) -> None:
    sample = her(reward_fn=reward, rows=goal_rows([6]), her_ratio=1.0, achieved_goal_key=("next", "achieved_goal"))
    drawn = sample.sample(200)
    assert torch.equal(drawn["next", "reward"][:, 0] == 1, drawn["goal_index"] == drawn["index"])


class Learned(torch.nn.Module):
    """A reward with parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, achieved: Tensor, desired: Tensor) -> Tensor:
        return self.weight * distance(achieved, desired)


def test_a_module_may_be_the_reward() -> None:
    sample = her(reward_fn=Learned(), rows=goal_rows([6])).sample()
    assert_relabelled(sample)
    assert not sample["next", "reward"].requires_grad


def test_nothing_is_asked_where_nothing_is_relabelled() -> None:
    def never(achieved: Tensor, desired: Tensor) -> Tensor:
        raise AssertionError("no row has another goal")

    sample = her(reward_fn=never, rows=goal_rows([6]), her_ratio=0.0).sample()
    assert set(sample["goal_index"].tolist()) == {-1}
    assert bool((sample["desired_goal"] == NOT_YET).all())


@pytest.mark.parametrize(
    ("reward", "got"),
    [
        (lambda achieved, desired: achieved, r"float32\[64, 2\]"),
        (lambda achieved, desired: torch.zeros(3), r"float32\[3\]"),
        (lambda achieved, desired: 1.0, r"float32\[\]"),
        (lambda achieved, desired: torch.zeros(64, dtype=torch.complex64), r"complex64\[64\]"),
    ],
)
def test_rewards_of_another_shape_are_refused(reward: Any, got: str) -> None:
    buffer = her(reward_fn=reward, rows=goal_rows([6]), her_ratio=1.0)
    with pytest.raises(
        LayoutError, match=rf"reward_fn must return float32\[64, 1\], as next.reward of the rows; got {got}"
    ):
        buffer.sample()


# -- refusals --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"strategy": "past"}, ValueError, r"strategy \('past'\) must be one of \['future', 'final', 'episode', 'random'\]"),
        ({"her_ratio": 1.5}, ValueError, r"her_ratio \(1.5\) must be a number in \[0, 1\]"),
        ({"her_ratio": -0.1}, ValueError, r"her_ratio \(-0.1\)"),
        ({"her_ratio": float("nan")}, ValueError, r"her_ratio \(nan\)"),
        ({"her_ratio": "all"}, ValueError, r"her_ratio \('all'\)"),
        ({"reward_fn": 3}, TypeError, "reward_fn must be a function; got int"),
        ({"reward_fn": lambda a, b, c: a}, TypeError, r"reward_fn must take .*; got \(a, b, c\)"),
        ({"reward_fn": lambda: 0}, TypeError, "reward_fn must take"),
        ({"goal_key": 3}, TypeError, r"goal_key \(3\) must be the name of an entry"),
        ({"end_key": None}, TypeError, "end_key"),
        ({"writer": TensorDictMaxValueWriter(rank_key="step")}, ValueError, "must write steps in the order they come"),
        ({"consume_after_n_samples": 2}, ValueError, "sample_unit"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        her(**settings)


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("desired_goal", r"goal_key \(desired_goal\) must be a stored entry"),
        ("achieved_goal", r"achieved_goal_key \(achieved_goal\) must be a stored entry"),
        (("next", "reward"), r"reward_key \(next.reward\) must be a stored entry"),
        (("next", "done"), "end flags .*next.done.* must be a stored entry"),
    ],
)
def test_missing_entries_are_named_and_nothing_is_drawn(storage: type, missing: Any, words: str) -> None:
    sampler = SamplerWithoutReplacement()
    buffer = her(storage=storage(20), sampler=sampler, rows=goal_rows([6]).exclude(missing))
    before = str(sampler.state_dict())
    for _ in range(2):
        with pytest.raises(KeyError, match=words):
            buffer.sample(4)
    assert str(sampler.state_dict()) == before


def test_goals_that_do_not_look_alike_are_refused() -> None:
    rows = goal_rows([6])
    rows["desired_goal"] = rows["desired_goal"][:, :1].clone()
    with pytest.raises(
        LayoutError,
        match=r"achieved_goal must have the dtype and shape of desired_goal, float32\[1\]; got float32\[2\]",
    ):
        her(rows=rows).sample()


def test_other_records_than_tensordicts_are_refused() -> None:
    buffer = her(storage=ListStorage(10))
    rows = goal_rows([4])
    buffer.extend([row.to_dict() for row in rows.unbind(0)])
    with pytest.raises(LayoutError, match="data must be a TensorDict to be relabelled; got dict"):
        buffer.sample(20)


def test_a_sample_can_be_extended_again() -> None:
    buffer: ReplayBuffer = her(rows=goal_rows([6]))
    sample = buffer.sample(5)
    other = her(rows=goal_rows([6]))
    assert other.extend(sample).tolist() == [6, 7, 8, 9, 10]
    assert isinstance(other[:], TensorDict)
    assert "goal_index" not in buffer.sample(5, include_info=False)  # type: ignore[call-arg]
