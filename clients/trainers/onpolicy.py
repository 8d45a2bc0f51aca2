"""On-policy training: an update learns from all that was just collected, which is then thrown away."""

from __future__ import annotations

from typing import Any

from clients.collect_stats import CollectStats
from clients.trainers.collecting import CollectingTrainer
from clients.trainers.trainer import at_least_one

__all__ = ["OnpolicyTrainer", "onpolicy_trainer"]


class OnpolicyTrainer(CollectingTrainer):
    """Collects, makes one `policy.update` on all rows in order, and empties the buffer, as `Trainer` says.

    repeat_per_collect: how often an update goes through the rows. batch_size: rows of one gradient step. The policy's `learn`
    gets both, as `repeat` and `batch_size`. Totals of episodes that are open go on in the emptied buffer. The rest is as for
    `OffpolicyTrainer`.
    """

    def __init__(
        self,
        policy: Any,
        train_collector: Any,
        test_collector: Any,
        max_epoch: int,
        step_per_epoch: int,
        repeat_per_collect: int = 1,
        episode_per_test: int | None = None,
        batch_size: int | None = None,
        step_per_collect: int | None = None,
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
        at_least_one(repeat_per_collect=repeat_per_collect, batch_size=batch_size)
        self.batch_size = batch_size
        self.repeat_per_collect = repeat_per_collect

    def _update(self, stats: CollectStats) -> None:
        collector = self.train_collector
        losses = self.policy.update(0, collector.buffer, batch_size=self.batch_size, repeat=self.repeat_per_collect)
        collector.reset_buffer(keep_statistics=True)
        self._count_losses(losses)


def onpolicy_trainer(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """All of `OnpolicyTrainer(*args, **kwargs)`; its info at the end.

    Arguments: policy, train_collector, test_collector, max_epoch, step_per_epoch, repeat_per_collect, episode_per_test,
    batch_size, step_per_collect, episode_per_collect; by keyword `TrainerOptions`.
    """
    return OnpolicyTrainer(*args, **kwargs).run()
