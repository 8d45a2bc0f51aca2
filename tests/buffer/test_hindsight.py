"""Which goals rows are given, against a walk through the stored rows."""

from __future__ import annotations

import pytest
import torch

from replay_service import (
    HindsightStrategy,
    LazyTensorStorage,
)
from tests.buffer.episode_rows import chi_square
from tests.buffer.goal_rows import assert_relabelled, goal_rows, her


def walked(done: list[bool], newest: int, full: bool, slot: int) -> list[int]:
    """The slots from `slot` to the end of its episode, one step after the other: the long way to find them."""
    found = [slot]
    while not done[found[-1]] and found[-1] != newest:
        found.append((found[-1] + 1) % len(done))
        assert full or found[-1] > slot
    return found


@pytest.mark.parametrize("strategy", list(HindsightStrategy))
def test_goals_on_random_rings_are_those_of_a_walk(strategy: HindsightStrategy) -> None:
    random = torch.Generator().manual_seed(3)

    def integer(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=random))

    for ring in range(60):
        capacity = integer(1, 40)
        buffer = her(capacity, strategy=strategy, her_ratio=1.0, seed=ring)
        for number in range(integer(1, 12)):
            buffer.extend(goal_rows([integer(1, 12)], first=number, closed=integer(0, 4) > 0))
            stored, newest = buffer[:], (buffer.write_count - 1) % capacity
            done, full = stored["next", "done"].flatten().tolist(), len(buffer) == capacity
            sample = buffer.sample(20)
            ahead = [walked(done, newest, full, slot) for slot in range(len(done))]
            for slot, source, goal in zip(
                sample["index"].tolist(), sample["goal_index"].tolist(), sample["desired_goal"], strict=True
            ):
                assert torch.equal(goal, stored["achieved_goal"][source])
                if strategy == "final":
                    assert source == ahead[slot][-1]
                elif strategy == "future":
                    assert source in ahead[slot]
                elif strategy == "episode":
                    assert ahead[slot][-1] == ahead[source][-1]


def test_lanes_are_kept_apart() -> None:
    buffer = her(storage=LazyTensorStorage(60, ndim=2), her_ratio=1.0)
    for number in range(30):  # three lanes of 20 steps; around them several times
        lanes = [goal_rows([4, 3], first=100 * lane + 2 * number, closed=number % 3 > 0) for lane in range(3)]
        buffer.extend(torch.stack(lanes))
        sample, info = buffer.sample(return_info=True)
        # An episode without an end flag goes on into the next one of its lane.
        assert torch.equal(sample["desired_goal"][:, 0] // 100, sample["number"].float() // 100)
        assert torch.equal(sample["goal_index"][:, 1], sample["index"][:, 1])
        assert torch.equal(buffer[tuple(sample["goal_index"].unbind(1))]["achieved_goal"], sample["desired_goal"])
        assert torch.equal(torch.stack(info["goal_index"], 1), sample["goal_index"])


def test_the_ratio_is_that_of_rows() -> None:
    rows = goal_rows([10] * 10)
    for ratio in (0.0, 0.3, 0.8, 1.0):
        sample = her(rows=rows, her_ratio=ratio).sample(20_000)
        share = float(assert_relabelled(sample).double().mean())
        assert abs(share - ratio) <= 4 * (ratio * (1 - ratio) / 20_000) ** 0.5
    assert her().her_ratio == 0.8
    assert her().strategy is HindsightStrategy.FUTURE


@pytest.mark.parametrize(("strategy", "first", "last"), [("future", 3, 9), ("episode", 0, 9), ("final", 9, 9)])
def test_every_eligible_step_is_equally_likely(strategy: str, first: int, last: int) -> None:
    sample = her(rows=goal_rows([10, 5]), her_ratio=1.0, strategy=strategy).sample(60_000)
    steps = sample["desired_goal"][(sample["number"] == 0) & (sample["step"] == 3), 1].long()
    counts = torch.bincount(steps, minlength=10)
    assert int(counts.sum()) == int(counts[first : last + 1].sum()) > 3000
    assert chi_square(counts[first : last + 1]) < 30  # p < 0.0005 with 9 degrees of freedom


def test_any_record_may_be_the_goal_at_random() -> None:
    sample = her(rows=goal_rows([3, 2]), her_ratio=1.0, strategy="random").sample(10_000)
    assert chi_square(torch.bincount(sample["goal_index"], minlength=5)) < 20


def test_ends_that_move_in_place_count_at_once() -> None:
    buffer = her(rows=goal_rows([6]), her_ratio=1.0)
    buffer.set_at_(("next", "done"), torch.tensor([[True]]), torch.tensor([2]))
    sample = buffer.sample(500)
    assert torch.equal(sample["step"] > 2, sample["goal_index"] > 2)


def test_episodes_that_only_terminate_or_are_cut_off_end_too() -> None:
    rows = goal_rows([3, 3, 3], closed=False)
    done = rows["next", "done"]
    rows["next", "terminated"], rows["next", "truncated"] = done.clone(), torch.zeros_like(done)
    rows["next", "truncated"][5] = True
    rows["next", "terminated"][5] = False
    rows["next", "done"] = torch.zeros_like(done)
    assert_relabelled(her(rows=rows).sample(500))
    assert_relabelled(her(rows=rows.exclude(("next", "done"))).sample(500))
