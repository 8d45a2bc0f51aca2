"""Offline training: updates from a buffer that is full already."""

from __future__ import annotations

from typing import Any

from clients.trainers.progress import EpochBar
from clients.trainers.trainer import Trainer, at_least_one

__all__ = ["OfflineTrainer", "offline_trainer"]


class OfflineTrainer(Trainer):
    """Makes `update_per_epoch` updates of `batch_size` rows of `buffer` per epoch, as `Trainer` says.

    env_step counts the rows that were learned from; in epoch_stat, n/ep is the length of the buffer and n/st the updates.
    test_collector, max_epoch, episode_per_test, options: as for `OffpolicyTrainer`.
    """

    def __init__(
        self,
        policy: Any,
        buffer: Any,
        test_collector: Any,
        max_epoch: int,
        update_per_epoch: int,
        episode_per_test: int | None = None,
        batch_size: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(policy, test_collector, max_epoch, episode_per_test, options)
        if batch_size is None:
            raise ValueError(f"batch_size ({batch_size}) must be at least 1; got {batch_size}")
        at_least_one(update_per_epoch=update_per_epoch, batch_size=batch_size)
        self.buffer = buffer
        self.batch_size = batch_size
        self.update_per_epoch = update_per_epoch

    def _steps_of_epoch(self) -> int:
        return self.update_per_epoch

    def _train(self, bar: EpochBar) -> dict[str, int]:
        standing = self.standing
        while not bar.full and not self._stopped:
            self._count_losses(self.policy.update(self.batch_size, self.buffer))
            standing.env_step = standing.gradient_step * self.batch_size
            bar.advance(1, **self.losses)
        return {"n/ep": len(self.buffer), "n/st": standing.gradient_step}


def offline_trainer(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """All of `OfflineTrainer(*args, **kwargs)`; its info at the end.

    Arguments: policy, buffer, test_collector, max_epoch, update_per_epoch, episode_per_test, batch_size; by keyword
    `TrainerOptions`.
    """
    return OfflineTrainer(*args, **kwargs).run()
