"""Schedules: parameters of a sampler (`beta`, `alpha`, `max_staleness`…) that change step by step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

from replay_service.buffer.counts import positive_integer
from replay_service.buffer.samplers.base import Sampler

__all__ = ["LambdaScheduler", "LinearScheduler", "ParameterScheduler", "SchedulerList", "StepScheduler"]

MODES = ("multiplicative", "additive")


@runtime_checkable
class Holder(Protocol):
    """Something with a sampler and a lock around it: a buffer."""

    lock: AbstractContextManager[Any]

    @property
    def sampler(self) -> Sampler:
        """The sampler."""


class ParameterScheduler(ABC):
    """Base of all schedules of one parameter.

    Args:
        obj: a buffer or a sampler.
        param_name: the attribute of the sampler that is set.
        min_value, max_value: bounds of what is set; None for none.

    Raises:
        TypeError: `obj` is neither.
        ValueError: the sampler has no such attribute, or the bounds cross.
    """

    def __init__(
        self,
        obj: Any,
        param_name: str,
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        self._lock: AbstractContextManager[Any] | None
        if isinstance(obj, Sampler):
            sampler, self._lock = obj, None
        elif isinstance(obj, Holder):
            sampler, self._lock = obj.sampler, obj.lock
        else:
            raise TypeError(f"obj must be a ReplayBuffer or a Sampler; got {type(obj).__name__}")
        if not hasattr(sampler, param_name):
            raise ValueError(f"param_name ({param_name!r}) must be an attribute of {type(sampler).__name__}")
        self._sampler = sampler
        self._param_name = param_name
        self._min = -math.inf if min_value is None else min_value
        self._max = math.inf if max_value is None else max_value
        if self._min > self._max:
            raise ValueError(f"min_value ({min_value}) must not be above max_value ({max_value})")
        self._initial = getattr(sampler, param_name)
        self._steps = 0

    def step(self) -> None:
        """Goes on by one step and sets the parameter: of a buffer's sampler between two draws, not during one."""
        with self._lock or nullcontext():
            value = min(max(self._value_at(self._steps + 1), self._min), self._max)
            setattr(self._sampler, self._param_name, value)
            self._steps += 1

    def state_dict(self) -> dict[str, Any]:
        """The value it began with and the steps made since; the value now is in the sampler's state."""
        return {"param_name": self._param_name, "initial_value": self._initial, "steps": self._steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on where the saved schedule was.

        Raises:
            ValueError: a schedule of another parameter.
        """
        name, initial, steps = (state_dict[key] for key in ("param_name", "initial_value", "steps"))
        if name != self._param_name:
            raise ValueError(f"param_name ({self._param_name!r}) must be that of the saved schedule; got {name!r}")
        self._initial, self._steps = initial, int(steps)

    @property
    def current(self) -> Any:
        """The value of the parameter now."""
        return getattr(self._sampler, self._param_name)

    @abstractmethod
    def _value_at(self, step: int) -> Any:
        """The value after `step` steps, before the bounds."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._param_name!r}, steps={self._steps}, current={self.current})"


class LambdaScheduler(ParameterScheduler):
    """The initial value times a function of the number of steps.

    Args:
        obj, param_name, min_value, max_value: as `ParameterScheduler`.
        lambda_fn: from the number of steps made to the factor.
    """

    def __init__(
        self,
        obj: Any,
        param_name: str,
        lambda_fn: Callable[[int], float],
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__(obj, param_name, min_value, max_value)
        if not callable(lambda_fn):
            raise TypeError(f"lambda_fn must be callable; got {type(lambda_fn).__name__}")
        self._factor = lambda_fn

    def _value_at(self, step: int) -> Any:
        return self._initial * self._factor(step)


class LinearScheduler(ParameterScheduler):
    """From the initial value to `final_value` in `num_steps` equal steps; constant from there on.

    Args:
        obj, param_name: as `ParameterScheduler`.
        final_value: what the parameter ends at.
        num_steps: steps it takes.
    """

    def __init__(self, obj: Any, param_name: str, final_value: float, num_steps: int) -> None:
        super().__init__(obj, param_name)
        self._final = final_value
        self._num_steps = positive_integer(num_steps, "num_steps")

    def _value_at(self, step: int) -> Any:
        if step >= self._num_steps:
            return self._final
        return self._initial + (self._final - self._initial) * step / self._num_steps


class StepScheduler(ParameterScheduler):
    """Every `n_steps` steps, the value times `gamma` or plus `gamma`.

    Args:
        obj, param_name, min_value, max_value: as `ParameterScheduler`.
        gamma: the factor or the summand.
        n_steps: steps between two changes.
        mode: `"multiplicative"` or `"additive"`.
    """

    def __init__(
        self,
        obj: Any,
        param_name: str,
        gamma: float = 0.9,
        n_steps: int = 1,
        mode: str = "multiplicative",
        min_value: float | None = None,
        max_value: float | None = None,
    ) -> None:
        super().__init__(obj, param_name, min_value, max_value)
        if mode not in MODES:
            raise ValueError(f"mode ({mode!r}) must be one of {list(MODES)}")
        self._gamma = gamma
        self._n_steps = positive_integer(n_steps, "n_steps")
        self._mode = mode

    def _value_at(self, step: int) -> Any:
        if step % self._n_steps:
            return self.current
        return self.current * self._gamma if self._mode == "multiplicative" else self.current + self._gamma


class SchedulerList:
    """Several schedules that step together.

    Args:
        schedulers: one or several.
    """

    def __init__(self, schedulers: ParameterScheduler | Iterable[ParameterScheduler]) -> None:
        self.schedulers: list[ParameterScheduler] = []
        for scheduler in [schedulers] if isinstance(schedulers, ParameterScheduler) else schedulers:
            self.append(scheduler)

    def append(self, scheduler: ParameterScheduler) -> None:
        """Adds one more.

        Raises:
            TypeError: it is no schedule.
        """
        if not isinstance(scheduler, ParameterScheduler):
            raise TypeError(f"scheduler must be a ParameterScheduler; got {type(scheduler).__name__}")
        self.schedulers.append(scheduler)

    def step(self) -> None:
        """Every one goes on by one step."""
        for scheduler in self.schedulers:
            scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """The states of all, in order."""
        return {"schedulers": [scheduler.state_dict() for scheduler in self.schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Every one goes on where its saved counterpart was.

        Raises:
            ValueError: another number of schedules.
        """
        states = state_dict["schedulers"]
        if len(states) != len(self.schedulers):
            raise ValueError(f"schedulers ({len(self.schedulers)}) must be as many as were saved; got {len(states)}")
        for scheduler, state in zip(self.schedulers, states, strict=True):
            scheduler.load_state_dict(state)
