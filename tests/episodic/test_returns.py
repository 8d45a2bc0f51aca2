from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from replay_service.episodic import Batch, ReplayBuffer, VectorReplayBuffer
from replay_service.episodic.returns import episodic_return, gae, n_step_return, n_step_rewards, returns_to_go


class Steps:
    """Six steps in ten slots: rewards 1 to 6, terminated at 2, truncated at 4, slot 5 unfinished."""

    def __init__(
        self,
        rew: Any = (1, 2, 3, 4, 5, 6, 0, 0, 0, 0),
        terminated: tuple[int, ...] = (2,),
        truncated: tuple[int, ...] = (4,),
        newest: int = 5,
    ) -> None:
        self.rew = np.asarray(rew, dtype=np.float64)
        self.terminated = np.isin(np.arange(len(self.rew)), terminated)
        self.done = np.isin(np.arange(len(self.rew)), (*terminated, *truncated))
        self._newest = newest
        self._stays = np.isin(np.arange(len(self.rew)), (*terminated, *truncated, newest))

    def next(self, index: Any) -> NDArray[np.int64]:
        index = np.asarray(index)
        return np.where(self._stays[index], index, (index + 1) % len(self.rew))

    def unfinished_index(self) -> NDArray[np.int64]:
        return np.array([] if self.done[self._newest] else [self._newest], dtype=np.int64)


ALL = np.arange(6)


def stored() -> ReplayBuffer:
    """The same six steps in a buffer."""
    buffer = ReplayBuffer(10)
    for number in range(6):
        flags = {"terminated": number == 2, "truncated": number == 4}
        buffer.add(Batch(obs=number, act=0, rew=number + 1.0, obs_next=number + 1, **flags))
    return buffer


def ten_times(buffer: Any, slots: NDArray[np.int64]) -> torch.Tensor:
    return torch.from_numpy(10.0 * (slots + 1)).float()


@pytest.mark.parametrize(
    ("n", "expected", "last"),
    [
        (1, [6, 12, 3, 24, 30, 36], [0, 1, 2, 3, 4, 5]),
        (2, [7, 3.5, 3, 19, 30, 36], [1, 2, 2, 4, 4, 5]),
        (3, [2.75, 3.5, 3, 19, 30, 36], [2, 2, 2, 4, 4, 5]),
    ],
)
@pytest.mark.parametrize("make", [Steps, stored])
def test_n_step(make: Any, n: int, expected: list[float], last: list[int]) -> None:  # E79, E80, E81
    asked = []

    def values(buffer: Any, slots: NDArray[np.int64]) -> torch.Tensor:
        asked.append((buffer, slots.tolist()))
        return ten_times(buffer, slots)

    buffer = make()
    result = n_step_return(buffer, ALL, values, gamma=0.5, n_step=n)
    assert result.shape == (6, 1)
    assert result.tolist() == [[value] for value in expected]
    assert result.dtype == torch.float32
    assert asked == [(buffer, last)]
    for dtype in (torch.float16, torch.float64):
        typed = n_step_return(buffer, ALL, lambda *of, dtype=dtype: ten_times(*of).to(dtype), gamma=0.5, n_step=n)
        assert (typed.dtype, typed.tolist()) == (dtype, result.tolist())


def test_what_one_step_returns_need() -> None:  # E79
    buffer = stored()
    assert buffer.next(ALL).tolist() == [1, 2, 2, 4, 4, 5]
    assert buffer.unfinished_index().tolist() == [5]
    assert (n_step_rewards(buffer, ALL, 1, 0.5).discount > 0).tolist() == [True, True, False, True, True, True]


def test_n_step_with_values_per_action() -> None:
    result = n_step_return(Steps(), [0, 2], lambda _, slots: torch.tensor([[2.0, 4.0], [2.0, 4.0]]), gamma=0.5)
    assert result.tolist() == [[2.0, 3.0], [3.0, 3.0]]
    assert result.dtype == torch.float32


def test_what_the_buffer_knows_of_an_n_step_return() -> None:
    ahead = n_step_rewards(Steps(), ALL, 2, 0.5)
    assert ahead.rewards.tolist() == [2, 3.5, 3, 6.5, 5, 6]
    assert ahead.last.tolist() == [1, 2, 2, 4, 4, 5]
    assert ahead.discount.tolist() == [0.25, 0, 0, 0.25, 0.5, 0.5]


def test_n_step_rewards_of_several_agents() -> None:
    ahead = n_step_rewards(Steps(rew=np.array([[1, 10], [2, 20], [3, 30]]), newest=2), [0, 1], 2, 0.5)
    assert ahead.rewards.tolist() == [[2, 20], [3.5, 35]]


def test_the_documents_two_steps_know_no_episodes_and_ours_do() -> None:  # E83
    buffer = Steps(rew=(1, 2, 3, 4, 5), truncated=(), newest=4)
    indices, gamma = np.arange(5), 0.5
    naive = buffer.rew[indices] + gamma * buffer.rew[(indices + 1) % 5] + gamma**2 * 10
    assert naive.tolist() == [4.5, 6, 7.5, 9, 8]
    proper = n_step_return(buffer, indices, lambda _, slots: torch.full((5,), 10.0), gamma, n_step=2)
    assert proper.squeeze(1).tolist() == [4.5, 3.5, 3, 9, 10]


V = [0.5, 1, 1.5, 2, 2.5, 3]
V_NEXT = [1, 1.5, 9, 2.5, 3.5, 4]


@pytest.mark.parametrize(
    ("decay", "returns", "advantages"),
    [
        (0.5, [2.03125, 3.125, 3, 6.3125, 6.75, 8], [1.53125, 2.125, 1.5, 4.3125, 4.25, 5]),
        (1.0, [2.75, 3.5, 3, 7.375, 6.75, 8], [2.25, 2.5, 1.5, 5.375, 4.25, 5]),
        (0.0, [1.5, 2.75, 3, 5.25, 6.75, 8], [1, 1.75, 1.5, 3.25, 4.25, 5]),
    ],
)
@pytest.mark.parametrize("make", [Steps, stored])
def test_advantages(make: Any, decay: float, returns: list[float], advantages: list[float]) -> None:  # E84, E85
    result = episodic_return(make(), ALL, V_NEXT, V, gamma=0.5, gae_lambda=decay)
    assert [part.tolist() for part in result] == [returns, advantages]


@pytest.mark.parametrize("make", [Steps, stored])
def test_monte_carlo_returns_need_no_values(make: Any) -> None:  # E86
    for result in episodic_return(make(), ALL, gamma=0.5, gae_lambda=1.0):
        assert result.tolist() == [2.75, 3.5, 3, 6.5, 5, 6]
    for error in (ValueError, AssertionError):
        with pytest.raises(error, match=r"gae_lambda \(0.95\) must be 1"):
            episodic_return(make(), ALL, gamma=0.5)


@pytest.mark.parametrize("make", [Steps, stored])
def test_values_of_the_row_before_stand_in(make: Any) -> None:  # E86
    returns, advantages = episodic_return(make(), ALL, torch.tensor(V_NEXT), gamma=0.5, gae_lambda=0.5)
    assert returns.tolist() == [2.03125, 3.125, 3, 6.3125, 6.75, 8]
    assert advantages.tolist() == [-1.96875, 2.125, 1.5, 6.3125, 4.25, 4.5]


def test_values_may_have_a_last_dimension_of_one() -> None:
    values = torch.tensor(V).unsqueeze(1).requires_grad_()
    assert episodic_return(Steps(), ALL, V_NEXT, values, 0.5, 0.0)[1].tolist() == [1, 1.75, 1.5, 3.25, 4.25, 5]


def test_advantages_stop_where_the_order_leaves_something_out() -> None:
    _, advantages = episodic_return(Steps(), [0, 1, 3, 4], [1, 1.5, 2.5, 3.5], [0.5, 1, 2, 2.5], 0.5, 0.5)
    assert advantages.tolist() == [1 + 0.25 * 1.75, 1.75, 4.3125, 4.25]
    _, repeated = episodic_return(Steps(), [5, 5], [4, 4], [3, 3], 0.5, 0.5)
    assert repeated.tolist() == [5, 5]


def test_advantages_over_several_rings_that_went_round() -> None:
    buffer = VectorReplayBuffer(8, 2)
    for step in range(6):
        rows = Batch(obs=[0, 0], act=[0, 0], rew=[step, 10 * step], terminated=[0, 0], truncated=[0, 0])
        buffer.add(rows, buffer_ids=[0, 1])
    order = buffer.sample_indices(0)
    assert order.tolist() == [2, 3, 0, 1, 6, 7, 4, 5]
    sums = [returns_to_go(np.arange(2.0, 6.0) * scale, 0.5) for scale in (1, 10)]
    zeros = np.zeros(8)
    assert episodic_return(buffer, order, zeros, zeros, 0.5, 1.0)[0] == pytest.approx(np.concatenate(sums))
    # Slot 4 lies behind slot 3, but in another ring, where it follows slot 7.
    assert episodic_return(buffer, [3, 4], [0, 0], [0, 0], 0.5, 1.0)[0].tolist() == [3, 40]


@pytest.mark.parametrize(("info", "goes_on"), [({"TimeLimit.truncated": True}, True), ({}, False)])
def test_what_the_clock_ended_goes_on_being_worth_something(info: dict[str, bool], goes_on: bool) -> None:  # E117
    buffer = ReplayBuffer(3)
    for done in (False, True, False):
        buffer.add(Batch(obs=0, act=0, rew=1.0, done=done, obs_next=0, info=info if done else {}))
    ahead = n_step_rewards(buffer, [0, 1, 2], 1, 0.5)
    assert ahead.discount.tolist() == [0.5, 0.5 if goes_on else 0.0, 0.5]


def test_returns_to_go() -> None:  # E88
    assert returns_to_go([1, 2, 3], gamma=0.5).tolist() == [2.75, 3.5, 3]
    assert returns_to_go([1, 2, 3], gamma=0.5, ends=[True, False, True]).tolist() == [1, 3.5, 3]
    assert returns_to_go([]).tolist() == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: n_step_rewards(Steps(), ALL, 0, 0.5), r"n \(0\)"),
        (lambda: n_step_rewards(Steps(), ALL, 1, 1.5), r"gamma \(1.5\)"),
        (lambda: n_step_return(Steps(), ALL, lambda *_: torch.zeros(3)), "target_q_fn must give 6 rows"),
        (lambda: n_step_return(Steps(np.zeros((9, 2))), ALL, ten_times), "one number per step"),
        (lambda: episodic_return(Steps(), ALL, V_NEXT, V[:3]), r"v_s must have shape \[6\]; got \[3\]"),
        (lambda: gae(V, V, V, [False] * 6, [False] * 5), r"ends must have shape \[6\]"),
        (lambda: gae(V, V, V, [False] * 6, [False] * 6, gae_lambda=-1), "gae_lambda"),
        (lambda: returns_to_go(np.zeros((2, 2))), r"rewards must have shape \[T\]"),
    ],
)
def test_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


FLOATS = st.floats(-10, 10)
ROW = st.tuples(FLOATS, FLOATS, FLOATS, st.booleans(), st.booleans())


@settings(deadline=None)
@given(st.lists(ROW, min_size=1, max_size=30), st.floats(0, 1), st.floats(0, 1))
def test_advantages_against_the_definition(rows: list[Any], gamma: float, decay: float) -> None:
    reward, value, after, terminated, cut = (np.array(column) for column in zip(*rows, strict=True))
    ends = terminated | cut

    def advantage(t: int) -> float:
        delta = reward[t] + (0 if terminated[t] else gamma * after[t]) - value[t]
        return float(delta + (0 if ends[t] or t + 1 == len(rows) else gamma * decay * advantage(t + 1)))

    found = gae(reward, value, after, terminated, ends, gamma=gamma, gae_lambda=decay)
    assert found == pytest.approx([advantage(t) for t in range(len(rows))], abs=1e-9)


@settings(deadline=None)
@given(
    st.lists(st.tuples(FLOATS, st.sampled_from(["", "", "terminated", "truncated"])), min_size=1, max_size=30),
    st.integers(1, 6),
    st.floats(0, 1),
)
def test_n_steps_against_the_definition(rows: list[tuple[float, str]], n: int, gamma: float) -> None:
    rewards = [reward for reward, _ in rows]
    ends = {kind: tuple(i for i, (_, end) in enumerate(rows) if end == kind) for kind in ("terminated", "truncated")}
    newest = len(rows) - 1
    buffer = Steps(rewards, **ends, newest=newest)
    stops = {newest, *ends["terminated"], *ends["truncated"]}
    ahead = n_step_rewards(buffer, np.arange(len(rows)), n, gamma)
    for t in range(len(rows)):
        chain = [t]
        while len(chain) < n and chain[-1] not in stops:
            chain.append(chain[-1] + 1)
        assert ahead.last[t] == chain[-1]
        assert ahead.rewards[t] == pytest.approx(sum(gamma**k * rewards[i] for k, i in enumerate(chain)), abs=1e-9)
        bootstraps = chain[-1] not in ends["terminated"]
        assert ahead.discount[t] == pytest.approx(gamma ** len(chain) if bootstraps else 0.0)
