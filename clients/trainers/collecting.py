"""What trainers do that collect while they learn."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from clients.collect_stats import CollectStats
from clients.trainers.progress import EpochBar
from clients.trainers.trainer import Trainer, at_least_one

__all__ = ["CollectingTrainer"]


class CollectingTrainer(Trainer):
    """Base of the trainers that collect: an epoch is collect, update, collect, update … until `step_per_epoch` steps are there.

    Of step_per_collect and episode_per_collect exactly one says how much a collect takes. Steps overshoot to whole collects.
    """

    def __init__(
        self,
        policy: Any,
        train_collector: Any,
        test_collector: Any,
        max_epoch: int,
        episode_per_test: int | None,
        *,
        step_per_epoch: int,
        step_per_collect: int | None,
        episode_per_collect: int | None,
        options: dict[str, Any],
    ) -> None:
        super().__init__(policy, test_collector, max_epoch, episode_per_test, options)
        at_least_one(step_per_epoch=step_per_epoch)
        if (step_per_collect is None) == (episode_per_collect is None):
            raise ValueError(
                f"step_per_collect ({step_per_collect}) and episode_per_collect ({episode_per_collect}) must be given one at "
                "a time; got both or none"
            )
        if step_per_collect is not None:
            at_least_one(step_per_collect=step_per_collect)
        else:
            at_least_one(episode_per_collect=episode_per_collect)
        self.train_collector = train_collector
        self.step_per_epoch = step_per_epoch
        limits = {"n_step": step_per_collect, "n_episode": episode_per_collect}
        self._limits = {name: None if limit is None else int(limit) for name, limit in limits.items()}
        # A test in the middle of training says something only of the policy that collected.
        self._tests_in_train = self.options.test_in_train is not False and train_collector.policy is policy

    @abstractmethod
    def _update(self, stats: CollectStats) -> None:
        """The updates that a collect pays for."""

    def _train_collector(self) -> Any:
        return self.train_collector

    def _steps_of_epoch(self) -> int:
        return self.step_per_epoch

    def _train(self, bar: EpochBar) -> dict[str, int]:
        stats: CollectStats | None = None
        standing, train_fn = self.standing, self.options.train_fn
        while not bar.full and not self._stopped:
            if train_fn is not None:
                train_fn(standing.epoch, standing.env_step)
            if self._stopped:  # as train_fn wished
                break
            stats = self._collect()
            if self._passes(stats):
                self._stopped = True
            else:
                self._update(stats)
            bar.advance(stats.n_collected_steps, **self._shown())
        if stats is None:
            return {"n/ep": 0, "n/st": 0}
        return {"n/ep": stats.n_collected_episodes, "n/st": stats.n_collected_steps}

    def _collect(self) -> CollectStats:
        standing = self.standing
        stats = self._measured(self.train_collector.collect(**self._limits))
        standing.env_step += stats.n_collected_steps
        if stats.n_collected_episodes:
            self._last_return, self._last_len = stats["rew"], stats["len"]
        self.logger.log_train(stats, standing.env_step)
        return stats

    def _passes(self, stats: CollectStats) -> bool:
        """Whether collecting went so well that a test was due at once, and that test went as well."""
        stop = self.options.stop_fn
        if stop is None or not self._tests_in_train or not stats.n_collected_episodes or not stop(stats["rew"]):
            return False
        test = self.test()
        if not stop(test["rew"]):
            return False
        if test["rew"] > self.standing.best_reward:
            self._note_best(test)
            if self.options.save_best_fn is not None:
                self.options.save_best_fn(self.policy)
        return True

    def _shown(self) -> dict[str, float]:
        return {"rew": self._last_return, "len": self._last_len, **self.losses}
