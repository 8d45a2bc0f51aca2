"""The collector in front of episodic buffers; rows E… are those of the semantics table."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from clients.collector import Collector
from clients.environments import DummyVectorEnv, make_environments
from replay_service import LazyTensorStorage, TensorDictReplayBuffer
from replay_service.episodic import Batch, CachedReplayBuffer, ReplayBuffer, VectorReplayBuffer
from tests.clients.batch_policy import BatchPolicy
from tests.clients.counting import CountingEnv, StepEnv


def envs(*lengths: int, **options: Any) -> DummyVectorEnv:
    return DummyVectorEnv([partial(StepEnv, length, name, **options) for name, length in enumerate(lengths)])


def summary(stats: Any) -> list[Any]:
    return [stats["n/st"], stats["rews"].tolist(), stats["lens"].tolist()]


def test_steps_go_on_across_calls() -> None:  # E91, E92
    buffer = ReplayBuffer(size=20)
    collector = Collector(BatchPolicy(), StepEnv(3), buffer)
    calls = [summary(collector.collect(n_step=2)) for _ in range(4)]
    assert calls == [[2, [], []], [2, [3], [3]], [2, [3], [3]], [2, [], []]]
    assert buffer[:].obs.tolist() == [0, 1, 2, 0, 1, 2, 0, 1]
    assert buffer[:].obs_next.tolist() == [1, 2, 3, 1, 2, 3, 1, 2]
    assert (collector.collect_step, collector.collect_episode) == (8, 2)
    assert summary(collector.collect(n_episode=1)) == [1, [3], [3]]


def test_environments_step_together() -> None:  # E93
    collector = Collector(BatchPolicy(), envs(2, 3, 4), VectorReplayBuffer(30, 3))
    assert summary(collector.collect(n_step=4)) == [6, [2], [2]]
    assert collector.buffer[:].obs.tolist() == [0, 1, 100, 101, 200, 201]


def test_statistics_are_those_of_the_document() -> None:  # E118
    collector = Collector(BatchPolicy(), envs(3, 3), VectorReplayBuffer(100, 2))
    stats = collector.collect(n_step=6)
    assert len(stats) == 9
    assert (stats["n/ep"], stats["n/st"]) == (2, 6)
    assert stats["rews"].tolist() == stats["lens"].tolist() == [3, 3]
    assert stats["idxs"].tolist() == [0, 50]
    later = collector.collect(n_step=2)
    assert (later["n/ep"], later["rew"], later["rews"].tolist(), later["idxs"].tolist()) == (0, 0, [], [])
    assert [later[name] for name in ("n/st", "len", "rew_std", "len_std")] == [2, 0, 0, 0]
    assert later["lens"].tolist() == []


def test_episodes_are_told_in_the_order_in_which_they_ended() -> None:
    collector = Collector(BatchPolicy(), envs(4, 3), VectorReplayBuffer(60, 2))
    stats = collector.collect(n_step=18)
    assert stats["lens"].tolist() == stats["rews"].tolist() == [3, 4, 3, 4, 3]
    assert stats["idxs"].tolist() == [30, 0, 33, 4, 36]


def test_without_a_buffer_only_statistics_are_kept() -> None:
    collector = Collector(BatchPolicy(), envs(2, 3))
    assert summary(collector.collect(n_step=6)) == [6, [2, 3], [2, 3]]
    assert collector.buffer is None
    collector.reset()
    assert summary(collector.collect(n_episode=2)) == [5, [2, 3], [2, 3]]


def test_rings_that_take_whole_episodes_will_do() -> None:
    buffer = CachedReplayBuffer(ReplayBuffer(30), 2, 5)
    stats = Collector(BatchPolicy(), envs(2, 3), buffer).collect(n_step=8)
    assert stats["idxs"].tolist() == [0, 2, 5]
    assert buffer[:].obs.tolist() == [0, 1, 100, 101, 102, 0, 1, 100]
    with pytest.raises(ValueError, match="the buffer has 2"):
        Collector(BatchPolicy(), envs(2, 2, 2), buffer)


@pytest.mark.parametrize("steps_per_push", [1, 3, 16])
def test_pushes_of_several_steps_store_the_same(steps_per_push: int) -> None:
    buffer = VectorReplayBuffer(60, 3)
    collector = Collector(BatchPolicy(), envs(2, 3, 4), buffer, steps_per_push=steps_per_push)
    stats = collector.collect(n_step=12)
    assert buffer[:].obs.tolist() == [0, 1, 0, 1, 100, 101, 102, 100, 200, 201, 202, 203]
    assert buffer[:].done.tolist() == [False, True, False, True, False, False, True, False, False, False, False, True]
    assert stats["idxs"].tolist() == [0, 20, 2, 40]
    assert buffer.unfinished_index().tolist() == [23]


def test_true_outcomes_at_the_end_of_an_episode() -> None:
    buffer = VectorReplayBuffer(20, 2)
    Collector(BatchPolicy(), envs(2, 3), buffer).collect(n_step=8)
    assert buffer[:].obs_next.tolist() == [1, 2, 1, 2, 101, 102, 103, 101]


def test_truncation_is_not_termination() -> None:  # E100
    buffer = ReplayBuffer(size=10)
    Collector(BatchPolicy(), StepEnv(2, truncates=True), buffer).collect(n_step=4)
    assert buffer[:].truncated.tolist() == [False, True, False, True]
    assert not buffer[:].terminated.any()
    assert buffer[:].done.tolist() == [False, True, False, True]


def test_limits_and_lanes() -> None:  # E95
    collector = Collector(BatchPolicy(), StepEnv(3), ReplayBuffer(size=9))
    for limits in ({}, {"n_step": 1, "n_episode": 1}, {"n_step": 0}, {"n_episode": 0}):
        with pytest.raises(ValueError, match="must be"):
            collector.collect(**limits)
    assert collector.collect(n_step=1)["n/st"] == 1
    message = r"env \(3 environments, from lane 0 on\) must have a lane of the buffer each; the buffer has 1"
    with pytest.raises(ValueError, match=message):
        Collector(BatchPolicy(), envs(2, 2, 2), ReplayBuffer(size=9))
    with pytest.raises(ValueError, match="the buffer has 2"):
        Collector(BatchPolicy(), envs(2, 2, 2), VectorReplayBuffer(8, 2))
    with pytest.raises(ValueError, match="from lane 1 on"):
        Collector(BatchPolicy(), envs(2, 2), VectorReplayBuffer(8, 2), first_lane=1)


def test_spare_lanes_stay_empty() -> None:
    buffer = VectorReplayBuffer(40, 4)
    Collector(BatchPolicy(), envs(2, 2), buffer, first_lane=1).collect(n_step=6)
    assert buffer.sample_indices(0).tolist() == [10, 11, 12, 20, 21, 22]


def test_resets_apart() -> None:  # E96
    buffer = VectorReplayBuffer(30, 3)
    collector = Collector(BatchPolicy(), envs(9, 9, 9), buffer)

    def state() -> tuple[int, int]:
        return len(buffer), collector.collect_step

    collector.collect(n_step=6)
    collector.reset_env()
    assert state() == (6, 6)
    collector.reset_stat()
    assert state() == (6, 0)
    collector.reset_buffer()
    assert state() == (0, 0)
    collector.collect(n_step=3)
    collector.reset(reset_buffer=False)
    assert state() == (3, 0)
    collector.reset()
    assert state() == (0, 0)


def test_abandoned_steps_are_not_glued_to_the_next_episode() -> None:  # E97, done right
    buffer = ReplayBuffer(size=20)
    collector = Collector(BatchPolicy(), StepEnv(4), buffer)
    collector.collect(n_step=2)
    collector.reset(reset_buffer=False)
    assert summary(collector.collect(n_episode=1)) == [4, [4], [4]]
    assert buffer[:].obs.tolist() == [0, 1, 0, 1, 2, 3]
    assert buffer[:].done.tolist() == [False, True, False, False, False, True]
    assert buffer[:].truncated.tolist() == [False, True, False, False, False, False]
    assert buffer[:].terminated.tolist() == [False] * 5 + [True]


def test_episodes_of_environments_that_were_not_needed_end_truncated() -> None:
    buffer = VectorReplayBuffer(40, 2)
    collector = Collector(BatchPolicy(), envs(4, 4), buffer)
    collector.collect(n_step=4)
    assert summary(collector.collect(n_episode=1)) == [2, [4], [4]]
    assert buffer[:].obs.tolist() == [0, 1, 2, 3, 100, 101]
    assert buffer[:].truncated.tolist() == [False] * 5 + [True]
    assert len(buffer.unfinished_index()) == 0


def test_lengths_are_true_also_where_the_steps_are_gone() -> None:  # E98, E99 as E120
    collector = Collector(BatchPolicy(), StepEnv(4), ReplayBuffer(size=10))
    collector.collect(n_step=2)
    collector.reset_buffer(keep_statistics=True)
    assert summary(collector.collect(n_step=2)) == [2, [4], [4]]
    small = Collector(BatchPolicy(), StepEnv(4), ReplayBuffer(size=3))
    assert summary(small.collect(n_episode=1)) == [4, [4], [4]]


def test_long_episodes_are_as_likely_as_short_ones() -> None:
    collector = Collector(BatchPolicy(), envs(1, 10), VectorReplayBuffer(100, 2))
    assert summary(collector.collect(n_episode=4)) == [13, [1, 1, 1, 10], [1, 1, 1, 10]]
    # All are reset afterwards, the retired one, too.
    collector.buffer.reset()
    collector.collect(n_step=2)
    assert collector.buffer[:].obs.tolist() == [0, 100]


def test_no_more_environments_take_part_than_episodes_are_wanted() -> None:
    buffer = VectorReplayBuffer(60, 3)
    assert summary(Collector(BatchPolicy(), envs(3, 2, 2), buffer).collect(n_episode=2)) == [5, [2, 3], [2, 3]]
    assert buffer.lengths.tolist() == [3, 2, 0]


def test_of_several_that_finish_at_once_the_first_is_retired_first() -> None:
    buffer = VectorReplayBuffer(60, 3)
    assert summary(Collector(BatchPolicy(), envs(2, 2, 5), buffer).collect(n_episode=4))[1] == [2, 2, 2, 5]
    assert buffer.lengths.tolist() == [2, 4, 5]


def test_open_episodes_of_all_environments_are_finished_not_restarted() -> None:
    buffer = VectorReplayBuffer(60, 2)
    collector = Collector(BatchPolicy(), envs(3, 4), buffer)
    collector.collect(n_step=4)
    assert summary(collector.collect(n_episode=2)) == [3, [3, 4], [3, 4]]
    assert buffer[:].obs.tolist() == [0, 1, 2, 100, 101, 102, 103]
    assert buffer[:].terminated.tolist() == [False, False, True, False, False, False, True]


def discounted(episode: Any) -> dict[str, Any]:
    """Return to go of each step, gamma 0.5."""
    values, running = [], 0.0
    for reward in episode.rew[::-1]:
        running = reward + 0.5 * running
        values.append(running)
    return {"mc_return_to_go": values[::-1], "full_return": np.full(len(values), values[-1])}


def test_columns_of_whole_episodes() -> None:  # E103
    buffer = ReplayBuffer(size=20)
    collector = Collector(BatchPolicy(), StepEnv(3), buffer, on_episode_done=discounted)
    collector.collect(n_episode=2)
    assert buffer[:].mc_return_to_go.tolist() == [1.75, 1.5, 1.0] * 2
    assert buffer[:].full_return.tolist() == [1.75] * 6
    with pytest.raises(ValueError, match=r"n_step \(3\) must be n_episode with on_episode_done"):
        collector.collect(n_step=3)


def test_columns_of_single_steps_are_there_before_the_steps_are() -> None:
    buffer = VectorReplayBuffer(40, 2)
    told: list[tuple[list[float], int]] = []

    def doubled(steps: Batch) -> dict[str, Any]:
        told.append((steps.obs.tolist(), len(buffer)))
        assert set(steps.keys()) == {"obs", "act", "rew", "terminated", "truncated", "obs_next"}
        steps.rew *= 10
        return {"twice": 2 * steps.obs, "policy": {"end": steps.terminated}}

    collector = Collector(BatchPolicy(), envs(2, 3), buffer, on_step=doubled)
    assert summary(collector.collect(n_episode=2)) == [5, [2, 3], [2, 3]]
    # The first environment is retired after its episode: its third step is nobody's.
    assert told == [([0, 100], 0), ([1, 101], 2), ([102], 4)]
    assert buffer[:].twice.tolist() == [0, 2, 200, 202, 204]
    assert buffer[:].policy.end.tolist() == [False, True, False, False, True]
    assert buffer[:].rew.tolist() == [10] * 5
    for wrong in (1.0, np.zeros(3)):
        collector = Collector(
            BatchPolicy(), envs(2), VectorReplayBuffer(9, 1), on_step=lambda _, wrong=wrong: {"x": wrong}
        )
        with pytest.raises(ValueError, match=r"x \(\[3?\]\) of on_step must have one row for each of 1 steps"):
            collector.collect(n_step=1)


@pytest.mark.parametrize("hook", ["on_step", "on_episode_done"])
def test_hooks_need_a_buffer_that_keeps_what_they_return(hook: str) -> None:
    for buffer in (None, TensorDictReplayBuffer(storage=LazyTensorStorage(5), batch_size=2)):
        with pytest.raises(ValueError, match=f"{hook} must come with an episodic buffer"):
            Collector(BatchPolicy(), StepEnv(2), buffer, **{hook: discounted})


def test_columns_of_an_episode_that_does_not_fit_are_refused() -> None:
    collector = Collector(BatchPolicy(), StepEnv(5), ReplayBuffer(size=3), on_episode_done=discounted)
    with pytest.raises(ValueError, match=r"episode \(5 steps\) must fit in its lane"):
        collector.collect(n_episode=1)


class Shown(StepEnv):
    """Counts the frames it draws."""

    def __init__(self) -> None:
        super().__init__(3)
        self.render_mode = "rgb_array"
        self.frames = 0

    def render(self) -> Any:
        self.frames += 1
        return np.zeros((2, 2, 3), np.uint8)


def test_every_step_is_shown_on_request() -> None:
    env = Shown()
    Collector(BatchPolicy(), env, ReplayBuffer(size=10)).collect(n_episode=1, render=0.001)
    assert env.frames == 3


class Nested(CountingEnv):
    observation_space = spaces.Dict(  # type: ignore[assignment]
        {"picture": spaces.Box(0, 255, (2, 2), np.uint8), "speed": spaces.Box(-9, 9, (1,), np.float64)}
    )

    def _shown(self) -> Any:
        return {"picture": np.full((2, 2), self._steps, np.uint8), "speed": np.full(1, -self._steps, np.float64)}


def test_nested_observations() -> None:
    buffer = VectorReplayBuffer(20, 2)
    Collector(BatchPolicy(), make_environments(partial(Nested, 3), 2), buffer).collect(n_step=6)
    assert buffer[:].obs.picture[:, 0, 0].tolist() == [0, 1, 2] * 2
    assert buffer[:].obs_next.speed[:, 0].tolist() == [-1, -2, -3] * 2


def test_seeds_hold_also_where_environments_are_reset_first() -> None:
    shown = []
    for reset_first in (False, True):
        buffer = VectorReplayBuffer(40, 2)
        collector = Collector(BatchPolicy(), make_environments("CartPole-v1", 2), buffer, seed=3)
        if reset_first:
            collector.reset_env()
        collector.collect(n_step=10, random=True)
        shown.append((buffer[:].obs.tolist(), buffer[:].act.tolist()))
    assert shown[0] == shown[1]
