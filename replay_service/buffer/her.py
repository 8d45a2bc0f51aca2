"""The buffer for goals: some rows of each sample are told, in hindsight, that they wanted what their episode achieved."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from replay_service.buffer.assembly import make_sample_unit
from replay_service.buffer.hindsight import CHANCE, GOAL_INDEX, GOALS, Hindsight, HindsightStrategy, under_next
from replay_service.buffer.pick import Pick
from replay_service.buffer.tensordict_buffer import TensorDictReplayBuffer
from replay_service.buffer.trajectory import as_key
from replay_service.errors import LayoutError, key_name
from replay_service.specs import Key
from replay_service.structure import Leaf

__all__ = ["HERReplayBuffer", "HindsightStrategy"]


class HERReplayBuffer(TensorDictReplayBuffer):
    """A `TensorDictReplayBuffer` whose samples are relabelled in hindsight.

    Each drawn row, on its own, gets another goal with the chance `her_ratio`: what was achieved at a step of its episode, which `strategy`
    chooses. `goal_key`, and the same entry under `next` if it is stored, hold that goal then, and `reward_key` the reward for it. What is
    stored never changes, and records read by index are as stored. Samples have one more entry, `goal_index`: the record that the goal came
    from, -1 where a row is as stored. Episodes are what `episodes` says, so they go over the ring's edge, end at the newest step of an
    unfinished one, and stay within their lane.

    Args:
        reward_fn: rewards `[k]` (or of the shape of the stored ones, `[k, 1]`) of all relabelled rows at once. A function of two,
            `reward_fn(achieved, desired)`, is given goals `[k, *shape]`: what the step achieved (under `next` if that is stored) and the
            new goal. A function of one is given the relabelled rows, a TensorDict `[k]`. It runs outside the buffer's lock, with `prefetch`
            in several threads.
        her_ratio: the chance of a row to be relabelled, in [0, 1].
        strategy: a `HindsightStrategy` or its name: `"future"`, `"final"`, `"episode"` or `"random"`.
        goal_key: the entry with the desired goal.
        achieved_goal_key: the entry with what was achieved, of the same dtype and shape; name the one under `next` to take what
            a step led to.
        reward_key: the entry with the reward.
        end_key: the entry with end flags; `done`, `terminated` and `truncated` beside it count as well.
        sampler: how rows are drawn. None: `RandomSampler()`.
        **kwargs: as `TensorDictReplayBuffer`.

    Raises:
        ValueError: an unknown strategy, a ratio out of range, or parts that do not go together.
        TypeError: `reward_fn` cannot be called with one or two arguments, or a key is none.

    `sample` raises KeyError where an entry is not stored, and LayoutError where goals do not look alike or rewards have another shape.
    """

    def __init__(
        self,
        reward_fn: Callable[..., Any],
        *,
        her_ratio: float = 0.8,
        strategy: HindsightStrategy | str = HindsightStrategy.FUTURE,
        goal_key: str | Key = "desired_goal",
        achieved_goal_key: str | Key = "achieved_goal",
        reward_key: str | Key = ("next", "reward"),
        end_key: str | Key = ("next", "done"),
        sampler: Any = None,
        sample_unit: Any = None,
        **kwargs: Any,
    ) -> None:
        self._reward_fn = reward_fn
        self._of_goals = _takes_goals(reward_fn)
        self._goal_key = as_key("goal_key", goal_key)
        self._achieved_key = as_key("achieved_goal_key", achieved_goal_key)
        self._reward_key = as_key("reward_key", reward_key)
        keys = (self._goal_key, self._achieved_key, self._reward_key)
        self._hindsight = Hindsight(strategy, her_ratio, keys, end_key, make_sample_unit(sample_unit))
        super().__init__(sampler=sampler, sample_unit=self._hindsight, **kwargs)

    @property
    def strategy(self) -> HindsightStrategy:
        """Which step's achieved goal relabelled rows are given."""
        return self._hindsight.strategy

    @property
    def her_ratio(self) -> float:
        """The chance of a row to be relabelled."""
        return self._hindsight.ratio

    def pick(self, batch_size: int | None = None) -> Pick:
        """As `ReplayBuffer.pick`; nothing is drawn if records cannot be relabelled."""
        self._hindsight.require_fit(self._storage)
        return super().pick(batch_size)

    def dense_leaves(self) -> tuple[Leaf, ...] | None:
        """None: rows are changed after they were read."""
        return None

    def _read(self, pick: Pick) -> Any:
        self._hindsight.find_goals(pick, self._storage)
        return super()._read(pick)

    def _completed(self, data: Any, info: dict[str, Any]) -> Any:
        info.pop(CHANCE)
        goals = info.pop(GOALS, None)
        if goals is None:
            return data
        if not isinstance(data, TensorDictBase):
            raise LayoutError(f"data must be a TensorDict to be relabelled; got {type(data).__name__}")
        index = info[GOAL_INDEX]
        rows = torch.nonzero((index[0] if isinstance(index, tuple) else index) >= 0).squeeze(1)
        for key in (self._goal_key, under_next(self._goal_key)):
            if key is not None and data.get(key, None) is not None:
                _replace(data, key, rows, goals)
        _replace(data, self._reward_key, rows, self._rewards(data, rows))
        return data

    def _rewards(self, data: TensorDictBase, rows: Tensor) -> Tensor:
        """The rewards `[k, *shape]` of relabelled rows int64 `[k]`."""
        if self._of_goals:
            following = under_next(self._achieved_key)
            achieved = None if following is None else data.get(following, None)
            achieved = data.get(self._achieved_key) if achieved is None else achieved
            rewards = self._reward_fn(achieved[rows], data.get(self._goal_key)[rows])
        else:
            rewards = self._reward_fn(data[rows])
        stored = data.get(self._reward_key)
        given = rewards if isinstance(rewards, Tensor) else torch.as_tensor(rewards, device="cpu")
        count = rows.numel()
        wanted = (count, *stored.shape[1:])
        fits = given.shape in {wanted, (count,), (count, 1)} and given.numel() == torch.Size(wanted).numel()
        if not fits or not torch.can_cast(given.dtype, stored.dtype):
            shown = [
                f"{str(dtype).removeprefix('torch.')}{list(shape)}"
                for dtype, shape in ((stored.dtype, wanted), (given.dtype, given.shape))
            ]
            raise LayoutError(
                f"reward_fn must return {shown[0]}, as {key_name(self._reward_key)} of the rows; got {shown[1]}"
            )
        return given.detach().reshape(wanted)


def _replace(data: TensorDictBase, key: Key, rows: Tensor, values: Tensor) -> None:
    """Gives the rows int64 `[k]` of an entry other values; the batch is the caller's own, so its memory may be written to."""
    column = data.get(key)
    column[rows.to(column.device)] = values.to(column)
    data.set(key, column)


def _takes_goals(reward_fn: Any) -> bool:
    """Whether a reward function is one of two goals; else it is one of relabelled rows.

    Raises:
        TypeError: neither.
    """
    if not callable(reward_fn):
        raise TypeError(f"reward_fn must be a function; got {type(reward_fn).__name__}")
    try:
        called = reward_fn.forward if isinstance(reward_fn, torch.nn.Module) else reward_fn
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):  # compiled code need not say
        return True
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [one for one in parameters if one.kind in by_place and one.default is inspect.Parameter.empty]
    most = sum(one.kind in by_place for one in parameters)
    takes_any = any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters)
    if len(required) > 2 or not (most or takes_any):
        raise TypeError(
            f"reward_fn must take (achieved, desired), or the relabelled rows alone; got ({', '.join(one.name for one in required)})"
        )
    return len(required) != 1 and (takes_any or most >= 2)
