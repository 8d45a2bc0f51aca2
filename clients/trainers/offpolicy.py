"""Off-policy training: every collected step pays for updates, each on a batch of its own from the whole buffer."""

from __future__ import annotations

from typing import Any

from clients.collect_stats import CollectStats
from clients.learner import Learner
from clients.trainers.collecting import CollectingTrainer

__all__ = ["OffpolicyTrainer", "offpolicy_trainer"]


class OffpolicyTrainer(CollectingTrainer):
    """Collects and makes `round(update_per_step * collected steps)` updates of `batch_size` rows, as `Trainer` says.

    train_collector: a `Collector`, an `AsyncCollector` or a `RemoteCollector`; updates read its `buffer`. test_collector: a
    `Collector` without a buffer, or None for no tests. max_epoch: epochs at most. step_per_epoch: steps that an epoch collects,
    at least. step_per_collect, episode_per_collect: how much one collect takes; one of the two. episode_per_test: episodes of
    every test. batch_size: None takes the buffer's own; an episodic one then gives all its steps. update_per_step: updates per
    collected step. options: keywords, see `TrainerOptions`.

    Raises ValueError where a collect of `step_per_collect` steps doesn't pay for one update.
    """

    def __init__(
        self,
        policy: Any,
        train_collector: Any,
        test_collector: Any,
        max_epoch: int,
        step_per_epoch: int,
        step_per_collect: int | None = None,
        episode_per_test: int | None = None,
        batch_size: int | None = None,
        update_per_step: float = 1.0,
        *,
        episode_per_collect: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            policy,
            train_collector,
            test_collector,
            max_epoch,
            episode_per_test,
            step_per_epoch=step_per_epoch,
            step_per_collect=step_per_collect,
            episode_per_collect=episode_per_collect,
            options=options,
        )
        if step_per_collect is not None:
            together = getattr(getattr(train_collector, "environments", None), "num_envs", 1)
            steps = -(-step_per_collect // together) * together  # environments step together
            if round(update_per_step * steps) < 1:
                raise ValueError(
                    f"update_per_step ({update_per_step}) must make one update at least of step_per_collect ({step_per_collect}) "
                    f"steps, of which a collect takes {steps}"
                )
        self.batch_size = batch_size
        self.update_per_step = update_per_step
        self._learner: Learner | None = None

    def close(self) -> None:
        """Ask for no more batches; twice is fine."""
        learner, self._learner = self._learner, None
        if learner is not None:
            learner.close()

    def _update(self, stats: CollectStats) -> None:
        buffer = self.train_collector.buffer
        ahead = self.options.prefetch
        for _ in range(round(self.update_per_step * stats.n_collected_steps)):
            if self._stopped:
                return
            if ahead and callable(getattr(buffer, "prefetch", None)):
                if self._learner is None:
                    self._learner = Learner(self.policy, buffer, batch_size=self.batch_size, prefetch=ahead)
                self._count_losses(self._learner.step())
            else:
                self._count_losses(self.policy.update(self.batch_size, buffer))


def offpolicy_trainer(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """All of `OffpolicyTrainer(*args, **kwargs)`; its info at the end.

    Arguments: policy, train_collector, test_collector, max_epoch, step_per_epoch, step_per_collect, episode_per_test, batch_size,
    update_per_step; by keyword episode_per_collect and `TrainerOptions`.
    """
    return OffpolicyTrainer(*args, **kwargs).run()
