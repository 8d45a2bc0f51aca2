"""A collect that breaks off: whatever failed, no step seems to follow one that is lost, and the next collect works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from clients.collector import Collector
from replay_service import LazyTensorStorage, TensorDictReplayBuffer
from replay_service.episodic import Batch, VectorReplayBuffer
from tests.clients.counting import CountingEnv

LENGTHS = (4, 5, 6)


class Traced(gymnasium.Env[Any, Any]):
    """Shows (its number, episode, step); its 7th step does what `fault` does."""

    observation_space = spaces.Box(-1e9, 1e9, (3,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, number: int, fault: Callable[[], Any] | None) -> None:
        self.number, self.fault = number, fault
        self.episode = self.steps = self.time = 0

    def reset(self, **options: Any) -> Any:
        self.episode, self.time = self.episode + 1, 0
        return self._shown(), {}

    def step(self, action: Any) -> Any:
        self.time, self.steps = self.time + 1, self.steps + 1
        if self.steps == 7 and self.fault is not None:
            return self.fault()
        return self._shown(), 1.0, self.time == LENGTHS[self.number], False, {}

    def _shown(self) -> Any:
        return np.array([self.number, self.episode, self.time], np.float64)


class Wrong:
    """A policy whose 5th answer (or `when`) is `answer(N)`."""

    def __init__(self, answer: Callable[[int], Any] | None = None, when: int = 5) -> None:
        self.answer, self.when, self.calls = answer, when, 0

    def __call__(self, batch: Batch, state: Any = None) -> Any:
        self.calls += 1
        if self.calls == self.when and self.answer is not None:
            return self.answer(len(batch.obs))
        return Batch(act=np.zeros(len(batch.obs), np.int64))


def raising(error: BaseException) -> Callable[[], Any]:
    def fault() -> Any:
        raise error

    return fault


def is_whole(buffer: VectorReplayBuffer) -> bool:
    """Whether each row is one step of one environment, and the next one goes on where it ended."""
    if not len(buffer):
        return True
    slots = buffer.sample_indices(0)
    rows, following = buffer[slots], buffer.next(slots)
    one_step = (rows.obs_next - rows.obs).tolist() == [[0, 0, 1]] * len(slots)
    joined = (rows.obs_next == buffer[following].obs).all(axis=1)
    return one_step and bool((joined | (following == slots)).all())


def collected(policy: Any, fault: Callable[[], Any] | None, steps_per_push: int, **how: int) -> tuple[Any, Any]:
    """(collector, buffer) after a collect that broke off."""
    made = [lambda number=number: Traced(number, fault if number == 1 else None) for number in range(3)]
    buffer = VectorReplayBuffer(600, 3)
    collector = Collector(policy, made, buffer, steps_per_push=steps_per_push)
    with pytest.raises(BaseException):  # noqa: B017, PT011 - each of these faults is another one
        collector.collect(**how)
    return collector, buffer


@pytest.mark.parametrize("steps_per_push", [1, 16])
@pytest.mark.parametrize("how", [{"n_step": 60}, {"n_episode": 9}])
@pytest.mark.parametrize(
    "fault",
    [
        raising(ValueError("no")),
        raising(KeyboardInterrupt()),
        lambda: None,
        lambda: (np.zeros(5), 1.0, False, False, {}),
        lambda: (np.zeros(3), "much", False, False, {}),
    ],
    ids=["raises", "interrupt", "nothing", "shape", "reward"],
)
def test_an_environment_that_fails(fault: Any, how: Any, steps_per_push: int) -> None:
    collector, buffer = collected(Wrong(), fault, steps_per_push, **how)
    assert is_whole(buffer)
    for _ in range(2):
        collector.collect(**how)
        assert is_whole(buffer)
    assert len(buffer) > 100 or "n_episode" in how


@pytest.mark.parametrize("steps_per_push", [1, 16])
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda n: None, r"act \(missing\) must be in what a policy gives; got NoneType"),
        (lambda n: Batch(state=np.zeros(n)), r"act \(missing\) must .* got \['state'\]"),
        (
            lambda n: Batch(act=np.zeros(n - 1, int)),
            r"act \(\[2\]\) of Wrong must be one array with a row for each of 3",
        ),
        (lambda n: Batch(act=0), r"act \(\[\]\) of Wrong must"),
        (lambda n: Batch(act={"a": np.zeros(n, int)}), r"act.a \(\[3\]\) of Wrong must be one array"),
        (lambda n: Batch(act=np.zeros((n, 4), int)), r"act .*shape \[4\].* must have the shape \[\]"),
        (lambda n: Batch(act=np.full(n, np.nan)), r"act \(float64\) must be numbers that fit int64"),
        (lambda n: Batch(act=np.zeros(n, int), policy={"q": np.zeros(n + 1)}), r"policy.q \(\[4\]\) of Wrong must"),
        (lambda n: Batch(act=np.zeros(n, int), state=np.zeros((n + 3, 2))), r"policy.hidden_state \(\[6, 2\]\)"),
    ],
)
def test_a_policy_that_answers_wrong(answer: Any, message: str, steps_per_push: int) -> None:
    buffer = VectorReplayBuffer(600, 3)
    collector = Collector(
        Wrong(answer), [lambda n=n: Traced(n, None) for n in range(3)], buffer, steps_per_push=steps_per_push
    )
    with pytest.raises((TypeError, ValueError), match=message):
        collector.collect(n_step=60)
    assert collector.collect(n_step=60)["n/st"] == 60
    assert is_whole(buffer)


def test_the_first_answer_may_be_the_wrong_one() -> None:
    wrong = Wrong(lambda n: Batch(act=np.zeros(n, int), policy={"q": np.zeros((n + 1, 2))}), when=1)
    collector = Collector(wrong, [lambda n=n: Traced(n, None) for n in range(3)], VectorReplayBuffer(60, 3))
    with pytest.raises(ValueError, match=r"policy\.q"):
        collector.collect(n_step=6)
    assert collector.collect(n_step=6)["n/st"] == 6


def test_actions_in_bfloat16_and_with_a_gradient() -> None:
    def answer(n: int) -> Any:
        return Batch(act=torch.zeros(n, dtype=torch.bfloat16, requires_grad=True))

    buffer = VectorReplayBuffer(60, 3)
    Collector(Wrong(answer, when=1), [lambda n=n: Traced(n, None) for n in range(3)], buffer).collect(n_step=3)
    assert buffer[:].act.tolist() == [0, 0, 0]


def test_an_environment_that_cannot_be_reset_at_first() -> None:
    class Stubborn(Traced):
        def reset(self, **options: Any) -> Any:
            shown = super().reset()
            if self.episode == 2:
                raise ValueError("not now")
            return shown

    buffer = VectorReplayBuffer(600, 3)
    made = [Stubborn(number, None) for number in range(3)]
    collector = Collector(Wrong(), [lambda one=one: one for one in made], buffer, steps_per_push=4)
    for _ in range(3):
        with pytest.raises(ValueError, match="not now"):
            collector.collect(n_step=30)
        if made[2].episode >= 2:
            break
    assert collector.collect(n_step=60)["n/st"] == 60
    assert is_whole(buffer)


def test_rows_that_a_buffer_lost_are_followed_by_the_end_of_their_episode() -> None:
    class Losing(VectorReplayBuffer):
        adds = 0

        def add(self, *args: Any, **kwargs: Any) -> Any:
            Losing.adds += 1
            if Losing.adds in (3, 6):
                raise ConnectionError("gone")
            return super().add(*args, **kwargs)

    buffer = Losing(600, 3)
    collector = Collector(Wrong(), [lambda n=n: Traced(n, None) for n in range(3)], buffer, steps_per_push=4)
    failures = 0
    for _ in range(5):
        try:
            collector.collect(n_step=60)
        except ConnectionError:
            failures += 1
    assert failures == 2
    assert is_whole(buffer)


def test_an_episode_that_is_over_stays_terminated_in_a_buffer_of_tensordicts() -> None:
    class Once(CountingEnv):
        ends = 0

        def reset(self, **options: Any) -> Any:
            Once.ends += 1
            if Once.ends == 3:  # after two episodes
                raise ValueError("after the end")
            return super().reset(**options)

    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(200))
    collector = Collector(Wrong(), [lambda: Once(3)], buffer, steps_per_push=1)
    with pytest.raises(ValueError, match="after the end"):
        collector.collect(n_step=12)
    collector.collect(n_step=5)
    rows = buffer[:]
    over, cut = rows["next", "terminated"].reshape(-1), rows["next", "truncated"].reshape(-1)
    assert (int(over.sum()), bool((over & cut).any())) == (3, False)
