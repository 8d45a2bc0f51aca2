from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import TensorDictBase

from clients.collector import Collector, CollectStats
from clients.environments import VectorEnvironments, make_environments
from replay_service import LazyTensorStorage, TensorDictReplayBuffer
from replay_service.errors import LayoutError
from tests.clients.counting import CountingEnv, FailingEnv
from tests.clients.fixed_policy import FixedPolicy


def counting(*lengths: int) -> VectorEnvironments:
    """One environment per length, named 0, 1, 2…"""
    made = [partial(CountingEnv, length, name) for name, length in enumerate(lengths)]
    return VectorEnvironments(SyncVectorEnv(made, autoreset_mode=AutoresetMode.DISABLED))


def buffer_of(capacity: int = 1000) -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=4)


def summary(stats: CollectStats) -> list[Any]:
    return [stats.n_collected_steps, stats.returns.tolist(), stats.lens.tolist()]


def shown(rows: TensorDictBase, *key: str) -> list[int]:
    return [int(value) for value in rows[(*key, "observation")][:, 0]]


def trajectories(rows: TensorDictBase) -> dict[int, TensorDictBase]:
    ids = rows["collector", "traj_ids"]
    return {int(i): rows[ids == i] for i in ids.unique()}


def test_layout() -> None:
    buffer = buffer_of()
    Collector(FixedPolicy(), counting(3, 3), buffer, record_version=True).collect(n_step=4)
    rows = buffer[:]
    leaves = {key: (leaf.dtype, tuple(leaf.shape)) for key, leaf in rows.items(True, True) if key != "index"}
    assert leaves == {
        "observation": (torch.float32, (4, 2)),
        "action": (torch.int64, (4,)),
        ("next", "observation"): (torch.float32, (4, 2)),
        ("next", "reward"): (torch.float32, (4, 1)),
        ("next", "done"): (torch.bool, (4, 1)),
        ("next", "terminated"): (torch.bool, (4, 1)),
        ("next", "truncated"): (torch.bool, (4, 1)),
        ("collector", "traj_ids"): (torch.int64, (4,)),
        "policy_version": (torch.int64, (4,)),
    }


def test_rows_of_a_push_are_ordered_by_environment_then_time() -> None:
    buffer = buffer_of()
    Collector(FixedPolicy(), counting(9, 9, 9), buffer, steps_per_push=2).collect(n_step=9)
    # Pushes of 2 steps, and what was left at the end of the call.
    assert shown(buffer[:]) == [0, 1, 1000, 1001, 2000, 2001, 2, 1002, 2002]


def test_no_reset_observation_is_the_outcome_of_a_step() -> None:
    buffer = buffer_of()
    Collector(FixedPolicy(), counting(3), buffer, steps_per_push=4).collect(n_step=8)
    assert shown(buffer[:]) == [0, 1, 2, 0, 1, 2, 0, 1]
    assert shown(buffer[:], "next") == [1, 2, 3, 1, 2, 3, 1, 2]
    assert buffer[:]["next", "done"].flatten().tolist() == [False, False, True] * 2 + [False] * 2


def test_truncation_is_not_termination() -> None:
    buffer = buffer_of()
    environments = make_environments(partial(CountingEnv, 2, truncates=True), 1)
    Collector(FixedPolicy(), environments, buffer).collect(n_step=4)
    rows = buffer[:]["next"]
    assert rows["truncated"].flatten().tolist() == [False, True, False, True]
    assert not rows["terminated"].any()
    assert rows["done"].flatten().tolist() == [False, True, False, True]


def test_real_environment_is_stored_without_gaps() -> None:
    buffer = buffer_of()
    Collector(FixedPolicy(1), make_environments("CartPole-v1", 4), buffer, steps_per_push=8, seed=0).collect(n_step=400)
    for rows in trajectories(buffer[:]).values():
        assert torch.equal(rows["next", "observation"][:-1], rows["observation"][1:])
        assert not rows["next", "done"][:-1].any()
    assert buffer[:]["next", "done"].sum() > 4


def test_steps_go_on_across_calls() -> None:
    collector = Collector(FixedPolicy(), counting(3), buffer_of())
    calls = [summary(collector.collect(n_step=2)) for _ in range(4)]
    assert calls == [[2, [], []], [2, [3.0], [3]], [2, [3.0], [3]], [2, [], []]]
    # An open episode is finished, not started again.
    assert summary(collector.collect(n_episode=1)) == [1, [3.0], [3]]


def test_environments_step_together() -> None:
    collector = Collector(FixedPolicy(), counting(2, 3, 4), buffer_of())
    assert summary(collector.collect(n_step=4)) == [6, [2.0], [2]]


def test_long_episodes_are_as_likely_as_short_ones() -> None:
    buffer = buffer_of()
    collector = Collector(FixedPolicy(), counting(1, 10), buffer)
    # Without retiring, four episodes would come from the fast environment before the slow one ends its first.
    assert summary(collector.collect(n_episode=4)) == [13, [1.0, 1.0, 1.0, 10.0], [1, 1, 1, 10]]
    rows = buffer[:]
    assert len(rows) == 13
    assert sorted(len(one) for one in trajectories(rows).values()) == [1, 1, 1, 10]
    # Afterwards every environment starts anew.
    collector.collect(n_step=2)
    assert shown(buffer[:])[13:] == [0, 1000]


def test_fewer_episodes_than_environments() -> None:
    buffer = buffer_of()
    assert summary(Collector(FixedPolicy(), counting(4, 2, 3), buffer).collect(n_episode=2)) == [6, [2.0, 4.0], [2, 4]]
    assert {int(first) // 1000 for first in shown(buffer[:])} == {0, 1}


def test_trajectory_ids_differ_between_workers() -> None:
    ids: list[set[int]] = []
    for worker in range(3):
        buffer = buffer_of()
        Collector(FixedPolicy(), counting(2, 3), buffer, worker=worker).collect(n_step=20)
        ids.append(set(trajectories(buffer[:])))
        assert len(ids[-1]) == 4 + 5
    assert len(set.union(*ids)) == 3 * 9


def test_actions_are_the_policys_unless_random() -> None:
    buffer, policy = buffer_of(), FixedPolicy(2)
    Collector(policy, counting(5), buffer).collect(n_step=5)
    assert buffer[:]["action"].tolist() == [2] * 5
    assert policy.calls == 5
    Collector(policy, counting(50), buffer, seed=1).collect(n_step=45, random=True)
    assert set(buffer[5:50]["action"].tolist()) == {0, 1, 2}
    assert policy.calls == 5


class Announcements:
    """Weights that come one poll after the other."""

    def __init__(self, *newest: tuple[int, int] | None) -> None:
        self._newest = list(newest)

    def poll(self) -> tuple[int, Mapping[str, torch.Tensor]] | None:
        newest = self._newest.pop(0) if self._newest else None
        return None if newest is None else (newest[0], {"choice": torch.tensor(newest[1])})


def test_newer_weights_act_from_the_first_step_or_the_next_push_on() -> None:
    buffer = buffer_of()
    source = Announcements(None, (3, 1), None, (8, 2), None, (9, 0))
    collector = Collector(FixedPolicy(0), counting(99), buffer, steps_per_push=2, weights=source, record_version=True)
    stats = collector.collect(n_step=8)
    assert buffer[:]["action"].tolist() == [0, 0, 1, 1, 1, 1, 2, 2]
    assert buffer[:]["policy_version"].tolist() == [0, 0, 3, 3, 3, 3, 8, 8]
    # Looked at once before the first step and after each of four pushes.
    assert stats.policy_version == 8
    assert collector.collect(n_step=1).policy_version == 9


class Slow:
    """What answers `submit_extend` only when asked for the result; counts what is in flight."""

    def __init__(self, buffer: TensorDictReplayBuffer) -> None:
        self._buffer = buffer
        self.in_flight = 0
        self.most_in_flight = 0

    def submit_extend(self, rows: TensorDictBase) -> Slow.Answer:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        return Slow.Answer(self, rows)

    class Answer:
        def __init__(self, slow: Slow, rows: TensorDictBase) -> None:
            self._slow, self._rows = slow, rows

        def result(self, timeout: float | None = None) -> torch.Tensor:
            self._slow.in_flight -= 1
            return self._slow._buffer.extend(self._rows)


def test_several_pushes_travel_but_not_more() -> None:
    buffer = buffer_of()
    slow = Slow(buffer)
    Collector(FixedPolicy(), counting(99), slow, steps_per_push=1, extends_in_flight=3).collect(n_step=10)
    assert slow.most_in_flight == 3
    assert slow.in_flight == 0
    # Rows that travelled while others were gathered were not written over.
    assert shown(buffer[:]) == list(range(10))


def test_a_push_that_the_buffer_refuses_is_an_error() -> None:
    buffer = buffer_of()
    buffer.extend({"other": torch.zeros(2, 3)})
    with pytest.raises(LayoutError):
        Collector(FixedPolicy(), counting(3), buffer).collect(n_step=2)
    assert len(buffer) == 2


def test_an_environment_that_breaks_is_an_error() -> None:
    with pytest.raises(OSError, match="the simulator is gone"):
        Collector(FixedPolicy(), FailingEnv(9), buffer_of()).collect(n_step=5)


class Nested(CountingEnv):
    """Observes a dict of a picture and a number."""

    observation_space = spaces.Dict(  # type: ignore[assignment]
        {"picture": spaces.Box(0, 255, (2, 2), np.uint8), "speed": spaces.Box(-9, 9, (1,), np.float64)}
    )

    def _shown(self) -> Any:
        return {"picture": np.full((2, 2), self._steps, np.uint8), "speed": np.full(1, -self._steps, np.float64)}


def test_nested_observations_keep_their_keys_and_dtypes() -> None:
    buffer = buffer_of()
    Collector(FixedPolicy(), make_environments(partial(Nested, 3), 2), buffer).collect(n_step=6)
    rows = buffer[:]
    assert rows["observation", "picture"].dtype == torch.uint8
    assert rows["observation", "speed"].dtype == torch.float64
    assert rows["observation", "picture"][:, 0, 0].tolist() == [0, 1, 2] * 2
    assert rows["next", "observation", "picture"][:, 1, 1].tolist() == [1, 2, 3] * 2
    assert rows["next", "observation", "speed"].flatten().tolist() == [-1, -2, -3] * 2


def test_without_a_buffer_only_statistics_count() -> None:
    collector = Collector(FixedPolicy(), counting(2, 4))
    assert summary(collector.collect(n_episode=2)) == [6, [2.0, 4.0], [2, 4]]
    collector.reset(seed=5)
    assert summary(collector.collect(n_step=2)) == [2, [], []]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({}, r"n_step \(None\) and n_episode \(None\) must be given one at a time"),
        ({"n_step": 1, "n_episode": 1}, r"n_step \(1\) and n_episode \(1\) must be given one at a time"),
        ({"n_step": 0}, r"n_step \(0\) must be at least 1"),
        ({"n_episode": -1}, r"n_episode \(-1\) must be at least 1"),
    ],
)
def test_exactly_one_limit(limits: dict[str, int], message: str) -> None:
    buffer = buffer_of()
    with pytest.raises(ValueError, match=message):
        Collector(FixedPolicy(), counting(2), buffer).collect(**limits)  # type: ignore[arg-type]
    assert len(buffer) == 0


@pytest.mark.parametrize("name", ["steps_per_push", "extends_in_flight", "worker"])
def test_numbers_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} \(-1\) must be at least"):
        Collector(FixedPolicy(), counting(2), **{name: -1})  # type: ignore[arg-type]


def test_spaces_without_one_shape_are_refused() -> None:
    class Texts(CountingEnv):
        observation_space = spaces.Text(5)  # type: ignore[assignment]

    with pytest.raises(TypeError, match=r"observation \(Text\) must be a Box"):
        Collector(FixedPolicy(), Texts(2))


def test_close_closes_the_environments() -> None:
    class Noted(CountingEnv):
        closed = False

        def close(self) -> None:
            Noted.closed = True

    environments: Sequence[gymnasium.Env[Any, Any]] = [Noted(2)]
    Collector(FixedPolicy(), environments[0]).close()
    assert Noted.closed
