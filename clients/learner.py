"""The learner: draws batches through a handle, lets the policy learn, and publishes what acts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from clients.policy import Policy, Statistics

__all__ = ["Learner", "Pace"]


@dataclass(frozen=True)
class Pace:
    """How learning and collecting wait for each other.

    updates_per_step: gradient steps per environment step. warmup_steps: environment steps before the first update.
    lead_steps: how far collectors may be ahead of what the updates have paid for.
    Raises ValueError for numbers out of range.
    """

    updates_per_step: float = 0.125
    warmup_steps: int = 1000
    lead_steps: int = 2048

    def __post_init__(self) -> None:
        if not self.updates_per_step > 0:
            raise ValueError(f"updates_per_step ({self.updates_per_step}) must be above 0; got {self.updates_per_step}")
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps ({self.warmup_steps}) must be at least 0; got {self.warmup_steps}")
        if self.lead_steps * self.updates_per_step < 1:
            raise ValueError(
                f"lead_steps ({self.lead_steps}) must pay for one update at least ({1 / self.updates_per_step:g} steps), "
                f"or collectors and learner would wait for each other; got {self.lead_steps}"
            )

    def updates_due(self, env_steps: int, updates: int) -> int:
        """Updates that may be made now, after `env_steps` environment steps and `updates` updates."""
        if env_steps < max(1, self.warmup_steps):
            return 0
        return max(0, int((env_steps - self.warmup_steps) * self.updates_per_step) - updates)

    def steps_admitted(self, updates: int) -> int:
        """Environment steps that may be made in all until there are more than `updates` updates."""
        return self.warmup_steps + self.lead_steps + int(updates / self.updates_per_step)


class Learner:
    """Makes one update after another from `buffer`, a handle or a local buffer.

    batch_size: None takes the buffer's. publish: called with the acting weights after every `publish_every` updates and by
    `publish()`. prefetch: batches asked for ahead, where the buffer can. Raises ValueError for numbers out of range.
    """

    def __init__(
        self,
        policy: Policy,
        buffer: Any,
        *,
        batch_size: int | None = None,
        publish: Callable[[Mapping[str, Tensor]], Any] | None = None,
        publish_every: int = 32,
        prefetch: int = 2,
    ) -> None:
        for name, value in (("publish_every", publish_every), ("prefetch", prefetch)):
            if value < 1:
                raise ValueError(f"{name} ({value}) must be at least 1; got {value}")
        self.policy = policy
        self.updates = 0
        self._buffer = buffer
        self._batch_size = batch_size
        self._publish = publish
        self._publish_every = publish_every
        self._depth = prefetch
        self._batches: Iterator[Any] | None = None

    def step(self) -> Statistics:
        """One update on one batch; what `Policy.learn` reports.

        Raises EmptyBufferError while there is nothing to learn from, and whatever else the buffer raises; the next call
        asks anew.
        """
        if self._batches is None:
            self._batches = self._sampled()
        try:
            batch = next(self._batches)
        except BaseException:
            self._batches = None
            raise
        statistics = self.policy.update_on(batch, self._buffer)
        self.updates += 1
        if self.updates % self._publish_every == 0:
            self.publish()
        return statistics

    def publish(self) -> None:
        """Publish the acting weights as they are now."""
        if self._publish is not None:
            self._publish(self.policy.weights())

    def close(self) -> None:
        """Ask for no more batches; twice is fine. The buffer stays open: it isn't the learner's own."""
        batches, self._batches = self._batches, None
        close = getattr(batches, "close", None)
        if close is not None:
            close()

    def _sampled(self) -> Iterator[Any]:
        prefetch = getattr(self._buffer, "prefetch", None)
        if callable(prefetch):
            options = self.policy.sample_options if getattr(self._buffer, "returns_in_sample", False) else {}
            return iter(prefetch(self._batch_size, self._depth, **options))
        return self._one_by_one()

    def _one_by_one(self) -> Iterator[Any]:
        while True:
            yield self.policy.sample(self._batch_size, self._buffer)
