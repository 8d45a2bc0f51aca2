"""Goals in hindsight. Names E… are rows of the semantics that are kept to."""

from __future__ import annotations

import math
import pickle
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replay_service.episodic import Batch, HERReplayBuffer, HERVectorReplayBuffer
from replay_service.episodic.returns import n_step_rewards
from replay_service.errors import LayoutError


def reached(achieved: Any, desired: Any) -> Any:
    return (np.asarray(achieved) == np.asarray(desired)).astype(float)


def goal(achieved: Any) -> dict[str, Any]:
    achieved = np.asarray(achieved)
    return {"observation": achieved, "achieved_goal": achieved, "desired_goal": np.full_like(achieved, 99)}


def step(number: int, end: bool) -> Batch:
    entries = {"obs": goal(number), "obs_next": goal(number + 1), "act": 0, "rew": 0.0}
    return Batch({**entries, "terminated": end, "truncated": False})


def two_episodes(future_k: float, **settings: Any) -> HERReplayBuffer:
    """E76: what is achieved is 0 to 3 in the first, 10 to 13 in the second."""
    buffer = HERReplayBuffer(10, reached, horizon=3, future_k=future_k, **settings)
    for number in (0, 1, 2, 10, 11, 12):
        buffer.add(step(number, number in (2, 12)))
    return buffer


def goals(buffer: HERReplayBuffer) -> list[int]:
    return buffer.obs.desired_goal[:6].tolist()


def test_e76_rewriting_and_restoring() -> None:  # E76
    buffer = two_episodes(math.inf)
    buffer.rewrite_transitions(np.array([0, 2]))
    assert goals(buffer) == [3, 3, 3, 99, 99, 99]
    assert buffer.obs_next.desired_goal[:6].tolist() == [3, 3, 3, 99, 99, 99]
    assert buffer.rew[:6].tolist() == [0, 0, 1, 0, 0, 0]
    assert buffer.done[:6].tolist() == buffer.terminated[:6].tolist() == [False, False, True] * 2
    assert not buffer.truncated.any()
    buffer.restore()
    assert goals(buffer) == [99] * 6
    assert buffer.rew.sum() == 0


def test_e78_one_episode_is_rewritten_with_its_chance() -> None:  # E78, done right
    buffer = two_episodes(8.0)
    rewritten = 0
    for _ in range(800):
        buffer.rewrite_transitions([0, 2])
        rewritten += goals(buffer)[0] == 3
    assert rewritten / 800 == pytest.approx(0.875, abs=0.04)


def test_goals_lie_behind_the_last_drawn_step_and_apply_from_the_first() -> None:
    buffer = two_episodes(math.inf)
    seen = set()
    for _ in range(60):
        buffer.rewrite_transitions([1])
        assert goals(buffer)[0] == 99
        seen.add(goals(buffer)[1])
    assert seen == {2, 3}


def test_no_more_than_the_horizon() -> None:
    buffer = HERReplayBuffer(10, reached, horizon=2, future_k=math.inf)
    for number in range(5):
        buffer.add(step(number, number == 4))
    buffer.rewrite_transitions([1])
    assert buffer.obs.desired_goal[:5].tolist() in ([99, 2, 2, 99, 99], [99, 3, 3, 99, 99])


def test_every_call_that_writes_draws_or_saves_sees_what_was_added(tmp_path: Path) -> None:
    buffer = two_episodes(math.inf)
    for call in (
        lambda: buffer.add(step(20, False)),
        lambda: buffer.sample_indices(-1),
        lambda: buffer.save_hdf5(tmp_path / "file.hdf5"),
        lambda: pickle.dumps(buffer),
        lambda: buffer.end_episodes(),
        buffer.reset,
    ):
        buffer.sample(4)
        assert min(buffer.obs.desired_goal[:6]) < 99
        call()
        assert goals(buffer) == [99] * 6
    assert goals(HERReplayBuffer.load_hdf5(tmp_path / "file.hdf5")) == [99] * 6


def test_what_is_taken_over_or_replaced_is_as_it_was_added() -> None:
    buffer, other = two_episodes(math.inf), two_episodes(math.inf)
    buffer.sample(4)
    other.sample(4)
    assert buffer.update(other).tolist() == [6, 7, 8, 9, 0, 1]
    assert buffer.obs.desired_goal.tolist() == other.obs.desired_goal[:6].tolist() + [99] * 4 == [99] * 10
    columns = {name: deepcopy(getattr(buffer, name)) for name in ("obs", "obs_next", "act", "rew", "done")}
    columns["obs"].desired_goal[:] = 55
    buffer.sample(4)
    buffer.set_batch(columns)
    buffer.restore()
    assert buffer.obs.desired_goal.tolist() == [55] * 10


def test_of_k_episodes_all_but_one_are_rewritten() -> None:
    buffer = HERReplayBuffer(40, reached, horizon=2, future_k=4.0)
    for number in range(0, 40, 2):
        buffer.add(step(number, False))
        buffer.add(step(number + 1, True))
    buffer.rewrite_transitions(np.arange(0, 16))  # eight episodes
    rewritten = (buffer.obs.desired_goal != 99).reshape(-1, 2)
    assert rewritten.all(axis=1).sum() == rewritten.any(axis=1).sum() == 6
    assert not rewritten[8:].any()


@pytest.mark.parametrize(
    ("entry", "value", "named"),
    [
        ("obs", 1, "obs.observation"),
        ("obs", {"observation": 1, "achieved_goal": 1}, "obs.desired_goal"),
        ("obs_next", {"observation": 1, "desired_goal": 1}, "obs_next.achieved_goal"),
    ],
)
def test_steps_without_their_goals_are_refused(entry: str, value: Any, named: str) -> None:
    buffer = HERReplayBuffer(10, reached, horizon=3)
    with pytest.raises(LayoutError, match=rf"{named} \(missing\) must be in every step"):
        buffer.add(Batch({**dict(step(0, False).items()), entry: value}))
    assert len(buffer) == 0
    # What comes next need not be given at all.
    buffer.add(Batch({name: part for name, part in step(0, False).items() if name != "obs_next"}))
    buffer.sample(1)


def test_draws_and_returns_over_them_agree() -> None:
    buffer = two_episodes(math.inf)
    batch, slots = buffer.sample(64)
    assert batch.rew.tolist() == reached(batch.obs_next.achieved_goal, batch.obs.desired_goal).tolist()
    rewards = n_step_rewards(buffer, slots, 3, 1.0).rewards
    assert (rewards >= batch.rew).all()
    assert set(rewards.tolist()) <= {0.0, 1.0}
    assert not batch.terminated[batch.obs.achieved_goal % 10 != 2].any()


def test_next_observations_that_are_not_stored() -> None:
    buffer = two_episodes(math.inf, ignore_obs_next=True)
    buffer.rewrite_transitions([0, 1, 2])
    assert goals(buffer) == [2, 2, 2, 99, 99, 99]
    assert buffer.rew[:3].tolist() == [0, 1, 1]


def test_rings_and_wraps() -> None:
    buffer = HERVectorReplayBuffer(8, 2, reached, horizon=4, future_k=math.inf)
    for number in range(6):
        flags = {"terminated": np.array([number == 3, False]), "truncated": np.zeros(2, bool)}
        entries = {"obs": goal([number, 100 + number]), "obs_next": goal([number + 1, 101 + number])}
        buffer.add(Batch({**entries, "act": np.zeros(2), "rew": np.zeros(2), **flags}))
    # The second ring holds 104, 105, 102, 103 of one episode.
    buffer.rewrite_transitions([6, 5])
    assert buffer.obs.desired_goal[4:].tolist() == [106, 106, 106, 106]
    assert buffer.rew[4:].tolist() == [0, 1, 0, 0]
    assert buffer.obs.desired_goal[:4].tolist() == [99] * 4


def test_a_reward_function_that_fails_changes_nothing() -> None:
    def broken(achieved: Any, desired: Any) -> Any:
        raise ZeroDivisionError

    buffer = HERReplayBuffer(10, broken, horizon=3, future_k=math.inf)
    for number in range(3):
        buffer.add(step(number, False))
    with pytest.raises(ZeroDivisionError):
        buffer.sample(2)
    assert buffer.obs.desired_goal[:3].tolist() == [99] * 3
    assert len(buffer) == 3


@pytest.mark.parametrize("settings", [{"horizon": 0}, {"horizon": 3, "future_k": 0.5}])
def test_wrong_settings(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        HERReplayBuffer(10, reached, **settings)
