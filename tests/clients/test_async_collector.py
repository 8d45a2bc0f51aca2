from __future__ import annotations

import os
import signal
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest

from clients.async_collector import AsyncCollector
from clients.async_environments import AsyncEnvironments
from clients.collector import Collector
from replay_service import LazyTensorStorage, TensorDictReplayBuffer
from replay_service.episodic import VectorReplayBuffer
from replay_service.errors import ReplayTimeoutError, ServiceUnavailableError
from tests.clients.batch_policy import BatchPolicy, RecurrentPolicy
from tests.clients.counting import CountingEnv, FailingEnv, StepEnv


def threads(*lengths: int, wait_num: int | None = None) -> AsyncEnvironments:
    made = [partial(StepEnv, length, name) for name, length in enumerate(lengths)]
    return AsyncEnvironments(made, wait_num=wait_num, processes=False)


class Gated(StepEnv):
    """Answers only while its gate is open."""

    def __init__(self, length: int, name: int, gate: threading.Event) -> None:
        super().__init__(length, name)
        self._gate = gate

    def step(self, action: Any) -> Any:
        assert self._gate.wait(30)
        return super().step(action)


def lanes(buffer: VectorReplayBuffer) -> list[list[float]]:
    obs = buffer[:].obs
    return [obs[obs // 100 == name].tolist() for name in range(3)]


@pytest.mark.parametrize("policy", [BatchPolicy, RecurrentPolicy])
@pytest.mark.parametrize("random", [False, True])
def test_limits_are_at_least(policy: Any, random: bool) -> None:  # E113, done right without a state and at random
    buffer = VectorReplayBuffer(90, 3)
    collector = AsyncCollector(policy(), threads(2, 3, 4, wait_num=2), buffer)
    assert bool(buffer) is False
    for limit in (4, 4, 1):  # not reset before: the first collect does that
        stats = collector.collect(n_step=limit, random=random)
        assert stats["n/st"] >= limit
    assert bool(buffer) is True
    assert len(buffer) == collector.collect_step
    stats = collector.collect(n_episode=2, random=random)
    assert stats["n/ep"] >= 2
    for name, length in enumerate((2, 3, 4)):
        steps = lanes(buffer)[name]
        assert steps == [100 * name + step % length for step in range(len(steps))]
    collector.close()


def test_only_those_that_answered_take_their_next_step() -> None:
    gate = threading.Event()
    made: list[Any] = [partial(StepEnv, 9, 0), partial(Gated, 9, 1, gate)]
    environments = AsyncEnvironments(made, wait_num=1, processes=False)
    buffer = VectorReplayBuffer(40, 2)
    collector = AsyncCollector(BatchPolicy(), environments, buffer)
    try:
        assert collector.collect(n_step=6)["n/st"] == 6
        assert lanes(buffer)[:2] == [[0, 1, 2, 3, 4, 5], []]
    finally:
        gate.set()
    collector.collect(n_step=8)
    # What was under way is stored, too; nothing is lost or doubled.
    one = lanes(buffer)[1]
    assert one == [100 + step % 9 for step in range(len(one))]
    collector.close()


def test_state_of_each_environment_is_its_own() -> None:
    buffer = VectorReplayBuffer(300, 3)
    collector = AsyncCollector(RecurrentPolicy(), threads(2, 3, 4, wait_num=1), buffer)
    collector.collect(n_step=60)
    collector.close()
    rows = buffer[:]
    assert rows.policy.seen.tolist() == (rows.obs % 100 + 1).tolist()
    assert rows.info.env_id.tolist() == (rows.obs // 100).astype(int).tolist()


def test_rows_of_transitions_are_in_order_too() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(500), batch_size=4)
    collector = AsyncCollector(BatchPolicy(), threads(2, 3, 4, wait_num=1), buffer, steps_per_push=5)
    stats = collector.collect(n_step=40)
    collector.close()
    rows = buffer[:]
    assert len(rows) == stats["n/st"] >= 40
    for one in rows["collector", "traj_ids"].unique():
        steps = rows["observation"][rows["collector", "traj_ids"] == one]
        assert (steps % 100).tolist() == list(range(len(steps)))


def test_processes_answer_alike() -> None:
    made = [partial(StepEnv, 3, name) for name in range(2)]
    collector = AsyncCollector(BatchPolicy(), AsyncEnvironments(made, wait_num=1), VectorReplayBuffer(40, 2))
    try:
        assert collector.collect(n_episode=3)["lens"].tolist()[:3] == [3, 3, 3]
        collector.reset_env()
        assert collector.collect(n_step=2)["n/st"] >= 2
    finally:
        collector.close()
        collector.close()


class Dying(CountingEnv):
    def step(self, action: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_goes_wrong_is_an_error() -> None:
    for make, kind, message in (
        (partial(FailingEnv, 9), OSError, "the simulator is gone"),
        (partial(Dying, 9), ServiceUnavailableError, "must be alive; it is gone"),
    ):
        environments = AsyncEnvironments([make])
        collector = AsyncCollector(BatchPolicy(), environments)
        with pytest.raises(kind, match=message):
            collector.collect(n_step=3)
        environments.close()
    gate = threading.Event()
    slow = AsyncEnvironments([partial(Gated, 9, 0, gate)], processes=False, answer_timeout_s=0.05)
    slow.reset()
    with pytest.raises(ReplayTimeoutError, match=r"answer_timeout_s \(0.05\).*no answer from environments \[0\]"):
        slow.exchange(np.zeros(1, np.int64), slow.everyone)
    gate.set()
    slow.close()


def test_after_the_timeout_those_that_answered_are_enough() -> None:
    gate = threading.Event()
    made: list[Any] = [partial(StepEnv, 9, 0), partial(Gated, 9, 1, gate)]
    environments = AsyncEnvironments(made, wait_num=2, timeout_s=0.05, processes=False)
    environments.reset()
    who, step = environments.exchange(np.zeros(2, np.int64), environments.everyone)
    gate.set()
    assert who.tolist() == [0]
    assert step.next_observation.tolist() == [1]
    # A reset waits for the other one's answer and drops it.
    assert environments.reset().tolist() == [0, 100]
    assert environments.waiting.tolist() == [0, 1]
    environments.close()


def test_each_collector_has_its_kind_of_environments() -> None:  # E113
    environments = threads(2)
    with pytest.raises(ValueError, match="belong to an AsyncCollector"):
        Collector(BatchPolicy(), environments)  # type: ignore[arg-type]
    environments.close()
    with pytest.raises(TypeError, match=r"env \(StepEnv\) must be AsyncEnvironments"):
        AsyncCollector(BatchPolicy(), StepEnv(2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"wait_num": 0}, r"wait_num \(0\) must be at least 1 and at most 2"),
        ({"wait_num": 3}, r"wait_num \(3\) must be at least 1 and at most 2"),
        ({"timeout_s": 0.0}, r"timeout_s \(0.0\) must be above 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AsyncEnvironments([partial(StepEnv, 2)] * 2, processes=False, **settings)
    with pytest.raises(ValueError, match="env_fns"):
        AsyncEnvironments([])


def test_what_failed_is_dropped_and_everyone_begins_anew() -> None:
    class Once(StepEnv):
        failed = False

        def step(self, action: Any) -> Any:
            answer = super().step(action)
            if answer[0] == 102 and not Once.failed:
                Once.failed = True
                raise ValueError("once")
            return answer

    made = [partial(StepEnv, 5, 0), partial(Once, 5, 1), partial(StepEnv, 5, 2)]
    buffer = VectorReplayBuffer(300, 3)
    collector = AsyncCollector(BatchPolicy(), AsyncEnvironments(made, wait_num=2, processes=False), buffer)
    with pytest.raises(ValueError, match="once"):
        collector.collect(n_step=60)
    collector.collect(n_step=60)
    rows, slots = buffer[:], buffer.sample_indices(0)
    following = buffer.next(slots)
    assert (rows.obs_next == rows.obs + 1).all()
    assert ((rows.obs_next == buffer[following].obs) | (following == slots)).all()
    collector.close()


def test_an_environment_that_still_steps_is_asked_nothing_else() -> None:
    gate = threading.Event()
    environments = AsyncEnvironments([partial(Gated, 9, 0, gate)], processes=False, answer_timeout_s=0.05)
    buffer = VectorReplayBuffer(40, 1)
    collector = AsyncCollector(BatchPolicy(), environments, buffer)
    for _ in range(3):  # the step is not forgotten with the first time that is over
        with pytest.raises(ReplayTimeoutError, match="answer_timeout_s"):
            collector.collect(n_step=1)
    gate.set()
    while True:
        try:
            collector.collect(n_step=3)
            break
        except ReplayTimeoutError:
            continue
    assert buffer[:].obs.tolist() == [0, 1, 2]
    collector.close()


class Stuck(StepEnv):
    """Never answers."""

    def step(self, action: Any) -> Any:
        threading.Event().wait()


def test_a_process_that_never_answers_does_not_keep_close_waiting() -> None:
    environments = AsyncEnvironments([partial(Stuck, 3, 0)], answer_timeout_s=0.5)
    collector = AsyncCollector(BatchPolicy(), environments, VectorReplayBuffer(4, 1))
    with pytest.raises(ReplayTimeoutError):
        collector.collect(n_step=1)
    collector.close()


def test_environments_that_were_made_are_closed_if_a_later_one_fails() -> None:
    closed = []

    class Noted(StepEnv):
        def close(self) -> None:
            closed.append(self)

    def fail() -> Any:
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        AsyncEnvironments([partial(Noted, 3, 0), fail], processes=False)
    assert len(closed) == 1
