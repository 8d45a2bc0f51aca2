"""Returns of steps in a buffer: over n steps, to the end of the episode, and advantages (GAE).

A step that terminated is worth nothing afterwards; one that was only truncated, or that is the newest of an unfinished
episode, goes on being worth what the value function says. Sums never run past any of the three.

Whatever is like `Steps` can be given as the buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from replay_service.arguments import numbers_of, real_number
from replay_service.episodic.batch import Batch
from replay_service.episodic.refusals import RefusedTypeError, RefusedValueError

__all__ = [
    "NStep",
    "Steps",
    "check_n_step",
    "check_share",
    "episodic_return",
    "gae",
    "n_step_return",
    "n_step_rewards",
    "returns_to_go",
    "with_n_step",
]

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Ints = NDArray[np.int64]


class Steps(Protocol):
    """What returns need of a buffer."""

    @property
    def rew(self) -> Any:
        """Rewards `[maxsize]`."""

    @property
    def terminated(self) -> Any:
        """bool `[maxsize]`: nothing comes after this step."""

    @property
    def done(self) -> Any:
        """bool `[maxsize]`: the last step of its episode."""

    def next(self, index: Any) -> Ints:
        """The slot of the step after each of `index`; the same slot where none is stored or its episode ended."""

    def unfinished_index(self) -> Ints:
        """Slots that nothing follows though they are not done."""


class NStep(NamedTuple):
    """The part of an n-step return that the buffer knows: `rewards + discount * Q(next observation of last)`.

    rewards: float64 `[B]` (or `[B, k]`), the discounted sum. last: int64 `[B]`, slot of the last step in it.
    discount: float64 `[B]`, by which the value after that step counts; 0 where it terminated.
    """

    rewards: Floats
    last: Ints
    discount: Floats


def n_step_rewards(buffer: Steps, indices: ArrayLike, n: int, gamma: float) -> NStep:
    """Discounted rewards of up to `n` steps from each of `indices` int64 `[B]`, fewer where the episode goes no further.

    Sutton and Barto, Reinforcement Learning, 2nd edition, section 7.1.

    Raises:
        TypeError: `n` is no integer, or `gamma` no number.
        ValueError: `n` is below 1, or `gamma` is not from 0 to 1.
    """
    check_n_step(n, gamma)
    column = np.asarray(buffer.rew)
    slots = np.asarray(indices, dtype=np.int64)
    rewards = column[slots].astype(np.float64)
    discount = np.full(slots.shape, float(gamma))
    for _ in range(n - 1):
        following = np.asarray(buffer.next(slots))
        moved = following != slots  # an end stays where it is
        if not moved.any():  # and goes no further, however many steps are asked for
            break
        factor = np.where(moved, discount, 0.0)
        rewards += factor.reshape(factor.shape + (1,) * (rewards.ndim - factor.ndim)) * column[following]
        discount = np.where(moved, discount * gamma, discount)
        slots = following
    discount[np.asarray(buffer.terminated)[slots]] = 0.0
    return NStep(rewards, slots, discount)


def with_n_step(buffer: Any, batch: Batch, indices: ArrayLike, n_step: int, gamma: float) -> Batch:
    """Adds to a batch of the steps `indices` `[B]` what a learner needs for their n-step returns, and returns it.

    `batch.n_step` becomes a batch of "rew" and "discount" (float64 `[B]`, as `NStep` has them) and "obs_next", what was
    observed after the last step of each sum: the return is `rew + discount * value(obs_next)`.

    Raises:
        ValueError: a number is out of range.
    """
    ahead = n_step_rewards(buffer, indices, n_step, gamma)
    batch["n_step"] = Batch.wrap(
        {"rew": ahead.rewards, "discount": ahead.discount, "obs_next": buffer.get(ahead.last, "obs_next")}
    )
    return batch


def n_step_return(
    buffer: Steps,
    indices: ArrayLike,
    target_q_fn: Callable[[Any, Ints], Tensor],
    gamma: float = 0.99,
    n_step: int = 1,
) -> Tensor:
    """`G[t] = sum over k < m of gamma**k * r[t + k], + gamma**m * Q`, where m is `n_step` or less at the end of an episode.

    Args:
        buffer: see `Steps`.
        indices: the steps, int64 `[B]`.
        target_q_fn: called once with the buffer and the slots int64 `[B]` of the last steps; gives the values `[B]` or
            `[B, A]` of what came after these.
        gamma: discount per step.
        n_step: how many steps to look ahead, at least 1.

    Returns:
        In dtype and device of the values, `[B, 1]` or `[B, A]`.

    Raises:
        ValueError: a number is out of range, or the values have another number of rows.
    """
    ahead = n_step_rewards(buffer, indices, n_step, gamma)
    if ahead.rewards.ndim != 1:
        raise RefusedValueError(f"rew ({list(ahead.rewards.shape)}) must have one number per step for n-step returns")
    with torch.no_grad():
        values = target_q_fn(buffer, ahead.last)
    if not values.ndim or values.shape[0] != len(ahead.last):
        raise RefusedValueError(f"target_q_fn must give {len(ahead.last)} rows; got shape {list(values.shape)}")
    values = values.reshape(len(ahead.last), -1)
    rewards, discount = (
        torch.from_numpy(part).to(values.device, values.dtype).unsqueeze(1) for part in (ahead.rewards, ahead.discount)
    )
    return rewards + discount * values


def episodic_return(
    buffer: Steps,
    indices: ArrayLike,
    v_s_: ArrayLike | None = None,
    v_s: ArrayLike | None = None,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
) -> tuple[Floats, Floats]:
    """Returns and advantages, float64 `[B]` each, of steps that are in order of time, as `sample(0)` gives them.

    Where the step after `indices[t]` is not `indices[t + 1]`, the sum stops: at the end of an episode, at the newest step
    of an unfinished one, and where the order leaves something out.

    Args:
        buffer: see `Steps`.
        indices: the steps, int64 `[B]`.
        v_s_: values `[B]` of the next observations; None counts them as 0 and needs a `gae_lambda` of 1 (Monte Carlo).
        v_s: values `[B]` of the observations; None takes those of the next observations, one row later.
        gamma: discount per step.
        gae_lambda: the lambda of GAE, from 0 to 1.

    Raises:
        ValueError: a number is out of range, an array has another length, or `v_s_` is missing.
    """
    slots = np.asarray(indices, dtype=np.int64)
    rewards = np.asarray(buffer.rew)[slots]
    terminated = np.asarray(buffer.terminated)[slots]
    if v_s_ is None:
        if gae_lambda != 1.0:
            raise RefusedValueError(
                f"gae_lambda ({gae_lambda}) must be 1 without v_s_; give the values of the next observations"
            )
        after = np.zeros(slots.shape)
    else:
        after = _as_floats("v_s_", v_s_, len(slots))
    before = np.roll(np.where(terminated, 0.0, after), 1) if v_s is None else _as_floats("v_s", v_s, len(slots))
    advantage = gae(rewards, before, after, terminated, _ends(buffer, slots), gamma=gamma, gae_lambda=gae_lambda)
    return advantage + before, advantage


def _ends(buffer: Steps, slots: Ints) -> Flags:
    """bool `[B]`: the next of `slots` is not the next step of the same episode."""
    ends: Flags = np.asarray(buffer.done)[slots].astype(np.bool_)
    ends |= np.isin(slots, buffer.unfinished_index())
    ends[-1:] = True
    # A slot before its neighbour is followed by it, except where one ring ends and the next begins. Only the rest is asked for.
    jumps = slots[1:] != slots[:-1] + 1
    jumps |= np.isin(slots[1:], getattr(buffer, "subbuffer_edges", ()))
    places = np.flatnonzero(jumps)
    ends[places] |= np.asarray(buffer.next(slots[places])) != slots[places + 1]
    return ends


def gae(
    rewards: ArrayLike,
    values: ArrayLike,
    next_values: ArrayLike,
    terminated: ArrayLike,
    ends: ArrayLike,
    *,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
) -> Floats:
    """Generalised advantage estimates, float64 `[T]`, of steps in order of time.

    `A[t] = d[t] + gamma * gae_lambda * A[t + 1]` (without the second where `ends[t]`), with `d[t] = rewards[t] + gamma *
    next_values[t] - values[t]` (without the second where `terminated[t]`). Schulman et al. 2016, "High-Dimensional
    Continuous Control Using Generalized Advantage Estimation", equation 16.

    Args:
        rewards, values, next_values: `[T]`.
        terminated: bool `[T]`; nothing comes after this step.
        ends: bool `[T]`; the next row is not the next step.
        gamma, gae_lambda: from 0 to 1.

    Raises:
        ValueError: a number is out of range, or an array has another shape than `[T]`.
    """
    from replay_service.episodic.returns_kernels import advantages

    check_share("gamma", gamma)
    check_share("gae_lambda", gae_lambda)
    reward = _as_floats("rewards", rewards, None)
    value = _as_floats("values", values, reward.size)
    after = _as_floats("next_values", next_values, reward.size)
    over, cut = _as_flags("terminated", terminated, reward.size), _as_flags("ends", ends, reward.size)
    result = np.empty_like(reward)
    advantages(reward, value, after, over, cut, float(gamma), float(gamma * gae_lambda), result)
    return result


def returns_to_go(rewards: ArrayLike, gamma: float = 0.99, ends: ArrayLike | None = None) -> Floats:
    """Discounted sums of rewards from each step to the end, float64 `[T]`.

    Args:
        rewards: `[T]`, in order of time.
        gamma: from 0 to 1.
        ends: bool `[T]`, the last steps of episodes; None: one episode.

    Raises:
        ValueError: a number is out of range, or an array has another shape than `[T]`.
    """
    from replay_service.episodic.returns_kernels import discounted_sums

    check_share("gamma", gamma)
    reward = _as_floats("rewards", rewards, None)
    result = np.empty_like(reward)
    flags = np.zeros(reward.shape, np.bool_) if ends is None else _as_flags("ends", ends, reward.size)
    discounted_sums(reward, flags, float(gamma), result)
    return result


def check_n_step(n: Any, gamma: Any, name: str = "n") -> None:
    """Refuses what is no number of steps and no discount, before anything is drawn.

    Raises:
        TypeError: `n` is no integer, or `gamma` no number.
        ValueError: `n` is below 1, or `gamma` is not from 0 to 1.
    """
    if isinstance(n, bool) or not isinstance(n, Integral):
        raise RefusedTypeError(f"{name} ({n!r:.60}) must be an integer of at least 1; got {type(n).__name__}")
    if n < 1:
        raise RefusedValueError(f"{name} ({n}) must be at least 1; got {n}")
    check_share("gamma", gamma)


def check_share(name: str, value: Any) -> None:
    """Refuses what is not from 0 to 1: `TypeError` for what is no number, `ValueError` for one that is out of range."""
    if not 0.0 <= real_number(name, value) <= 1.0:
        raise RefusedValueError(f"{name} ({value}) must be from 0 to 1; got {value}")


def _as_floats(name: str, values: ArrayLike | Tensor, length: int | None) -> Floats:
    if not (isinstance(values, np.ndarray) and values.dtype.kind in "biuf"):
        values = numbers_of(name, values, torch.float64).double().numpy(force=True)
    array = np.ascontiguousarray(values, dtype=np.float64)
    if array.ndim == 2 and array.shape[1] == 1:  # as value networks give them
        array = array[:, 0].copy()
    return _checked(name, array, length)


def _as_flags(name: str, flags: ArrayLike, length: int) -> Flags:
    return _checked(name, np.ascontiguousarray(flags, dtype=np.bool_), length)


def _checked(name: str, array: NDArray[Any], length: int | None) -> NDArray[Any]:
    if array.ndim != 1 or (length is not None and array.size != length):
        raise RefusedValueError(
            f"{name} must have shape [{'T' if length is None else length}]; got {list(array.shape)}"
        )
    return array
