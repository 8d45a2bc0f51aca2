"""What all trainers do: epochs of training and tests, one after another, as an iterator."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from clients.async_collector import AsyncCollector
from clients.collect_stats import CollectStats
from clients.trainers.checkpoint import Standing, load_checkpoint, save_checkpoint
from clients.trainers.loggers import as_logger
from clients.trainers.options import TrainerOptions
from clients.trainers.progress import EpochBar
from clients.trainers.smoothing import MovingMean

__all__ = ["Trainer"]

Losses = Mapping[str, float | Sequence[float]]


class Trainer(ABC):
    """Base of the trainers: an iterator over epochs, each of which gives (epoch, epoch_stat, info).

    epoch: int, from 1. epoch_stat: the smoothed losses by name; gradient_step, env_step, rew, len, n/ep, n/st; with tests also
    test_reward, test_reward_std, best_reward, best_reward_std, best_epoch. info: duration, train_time/collector,
    train_time/model, test_time (seconds), train_step, train_episode (0 where nothing is collected), test_step, test_episode,
    train_speed, test_speed (steps per second), best_reward, best_result.

    It ends after `max_epoch` epochs, or after the one in which `stop_fn` was satisfied or `stop` was called. `iter` begins
    anew: a test, then epoch 1 (or, resumed, the epoch after the checkpoint's). Several may be iterated in a `zip`.

    Raises ValueError for numbers out of range and options that don't go together, TypeError for unknown options.
    """

    def __init__(
        self, policy: Any, test_collector: Any, max_epoch: int, episode_per_test: int | None, options: dict[str, Any]
    ) -> None:
        self.options = TrainerOptions(**options)
        at_least_one(max_epoch=max_epoch)
        if test_collector is not None:
            at_least_one(episode_per_test=episode_per_test)
            if isinstance(test_collector, AsyncCollector):
                raise ValueError(
                    "test_collector (AsyncCollector) must be a Collector: with one that takes at least as many episodes as "
                    "asked for, short episodes count more"
                )
        elif self.options.stop_fn is not None:
            raise ValueError("stop_fn must come with test_collector, whose mean return it gets; got None")
        self.policy = policy
        self.test_collector = test_collector
        self.max_epoch = max_epoch
        self.episode_per_test = episode_per_test or 0
        self.logger = as_logger(self.options.logger)
        self.standing = Standing()
        self._losses: dict[str, MovingMean] = {}
        self._last_return, self._last_len = 0.0, 0.0
        self._test_time = 0.0
        self._started_s: float | None = None  # None before the first reset
        self._stopped = False

    # -- as an iterator ---------------------------------------------------------------------------------------------

    def __iter__(self) -> Trainer:
        self.reset()
        return self

    def __next__(self) -> tuple[int, dict[str, Any], dict[str, Any]]:
        if self._started_s is None:
            self.reset()
        standing = self.standing
        if self._stopped or standing.epoch >= self.max_epoch:
            self.close()
            raise StopIteration
        standing.epoch += 1
        stat: dict[str, Any] = {}
        try:
            self.policy.train()
            with EpochBar(standing.epoch, self._steps_of_epoch(), shown=self.options.show_progress) as bar:
                counts = self._train(bar)
            if not self._stopped:
                self._save_before_test()
                stat.update(self._test_at_end())
                self._save()
        except BaseException:
            # The epoch is not done: who goes on, or resumes, begins it again. Nothing that was asked for ahead stays open.
            standing.epoch -= 1
            self.close()
            raise
        stat.update(self.losses)
        stat.update(gradient_step=standing.gradient_step, env_step=standing.env_step)
        stat.update({"rew": self._last_return, "len": int(self._last_len), **counts})
        if self.options.verbose:
            print(self._line(stat), flush=True)
        return standing.epoch, stat, self.info()

    def run(self) -> dict[str, Any]:
        """All epochs; the last info."""
        for _ in self:
            pass
        return self.info()

    def reset(self) -> None:
        """Begin anew (or where the checkpoint ended): totals of the collectors are 0 again; then the first test."""
        self.close()
        self.standing = Standing()
        self._losses, self._stopped = {}, False
        self._last_return, self._last_len, self._test_time = 0.0, 0.0, 0.0
        self._started_s = time.monotonic()
        for collector in self._collectors():
            collector.reset_stat()
        path = self.options.checkpoint
        if self.options.resume and path is not None and Path(path).exists():
            self.standing = load_checkpoint(Path(path), self.policy)
            return
        if self.test_collector is not None:
            self._note_best(self.test())
        if self.options.save_best_fn is not None:
            self.options.save_best_fn(self.policy)

    def stop(self) -> None:
        """End without another collect and another test; for `train_fn` and other threads."""
        self._stopped = True

    def close(self) -> None:  # noqa: B027 - most have nothing to let go of
        """Let go of what was asked for ahead; twice is fine. Collectors and buffers stay open."""

    @property
    def losses(self) -> dict[str, float]:
        """Means of the last 100 values of each loss, by name."""
        return {name: losses.mean for name, losses in self._losses.items()}

    # -- tests ------------------------------------------------------------------------------------------------------

    def test(self) -> CollectStats:
        """`episode_per_test` episodes from fresh environments, with the policy in its testing state."""
        collector, options = self.test_collector, self.options
        begun = time.monotonic()
        collector.reset_env()
        if collector.buffer is not None:
            collector.reset_buffer()
        self.policy.eval()
        try:
            if options.test_fn is not None:
                options.test_fn(self.standing.epoch, self.standing.env_step)
            stats = self._measured(collector.collect(n_episode=self.episode_per_test))
        finally:
            self.policy.train()
        self._test_time += time.monotonic() - begun
        self.logger.log_test(stats, self.standing.env_step)
        return stats

    def info(self) -> dict[str, Any]:
        """Durations and totals since the run began."""
        standing, test = self.standing, self.test_collector
        duration = time.monotonic() - (self._started_s if self._started_s is not None else time.monotonic())
        info: dict[str, Any] = {"duration": duration, "train_step": 0, "train_episode": 0}
        train = self._train_collector()
        collect_time = 0.0 if train is None else train.collect_time
        model_time = max(duration - collect_time - self._test_time, 0.0)
        if train is not None:
            info.update(train_step=train.collect_step, train_episode=train.collect_episode)
            info["train_time/collector"] = collect_time
            info["train_speed"] = train.collect_step / max(duration - self._test_time, 1e-9)
        info["train_time/model"] = model_time
        if test is not None:
            info.update(test_step=test.collect_step, test_episode=test.collect_episode, test_time=self._test_time)
            info["test_speed"] = test.collect_step / max(self._test_time, 1e-9)
            info["best_reward"] = standing.best_reward
            info["best_result"] = f"{standing.best_reward:.2f} ± {standing.best_reward_std:.2f}"
        return info

    # -- what each kind does -----------------------------------------------------------------------------------------

    @abstractmethod
    def _train(self, bar: EpochBar) -> dict[str, int]:
        """The training of one epoch, until the bar is full or training is stopped; the last "n/ep" and "n/st"."""

    @abstractmethod
    def _steps_of_epoch(self) -> int:
        """Where the bar is full."""

    def _train_collector(self) -> Any:
        return None

    # -- inner ------------------------------------------------------------------------------------------------------

    def _collectors(self) -> list[Any]:
        return [one for one in (self._train_collector(), self.test_collector) if one is not None]

    def _measured(self, stats: CollectStats) -> CollectStats:
        metric = self.options.reward_metric
        if metric is None or not stats.n_collected_episodes:
            return stats
        return replace(stats, returns=metric(stats.returns))

    def _note_best(self, stats: CollectStats) -> None:
        standing = self.standing
        standing.best_epoch = standing.epoch
        standing.best_reward, standing.best_reward_std = stats["rew"], stats["rew_std"]

    def _count_losses(self, losses: Losses) -> None:
        """Losses of one update, or a list of them for several in one."""
        steps = 1
        latest: dict[str, float] = {}
        for name, loss in losses.items():
            values = [float(loss)] if isinstance(loss, int | float) else [float(value) for value in loss]
            self._losses.setdefault(name, MovingMean()).add(values)
            latest[name] = self._losses[name].mean
            steps = max(steps, len(values))
        self.standing.gradient_step += steps
        self.logger.log_update(latest, self.standing.gradient_step)

    def _test_at_end(self) -> dict[str, Any]:
        """The test after an epoch; it may be the best one, and it may be the last."""
        if self.test_collector is None:
            return {}
        stats, standing, options = self.test(), self.standing, self.options
        if stats["rew"] > standing.best_reward or standing.best_epoch < 0:
            self._note_best(stats)
            if options.save_best_fn is not None:
                options.save_best_fn(self.policy)
        if options.stop_fn is not None and options.stop_fn(standing.best_reward):
            self._stopped = True
        return {
            "test_reward": stats["rew"],
            "test_reward_std": stats["rew_std"],
            "best_reward": standing.best_reward,
            "best_reward_std": standing.best_reward_std,
            "best_epoch": standing.best_epoch,
        }

    def _save_before_test(self) -> None:
        standing = self.standing
        if self.options.save_checkpoint_fn is not None:
            self.options.save_checkpoint_fn(standing.epoch, standing.env_step, standing.gradient_step)

    def _save(self) -> None:
        if self.options.checkpoint is not None:
            save_checkpoint(Path(self.options.checkpoint), self.policy, self.standing)

    def _line(self, stat: Mapping[str, Any]) -> str:
        standing = self.standing
        line = f"Epoch #{standing.epoch}: {standing.env_step} env steps, {standing.gradient_step} updates"
        if "test_reward" in stat:
            line += (
                f", test reward {stat['test_reward']:.2f} ± {stat['test_reward_std']:.2f}, best {standing.best_reward:.2f} "
                f"± {standing.best_reward_std:.2f} in #{standing.best_epoch}"
            )
        return line


def at_least_one(**numbers: int | None) -> None:
    """Raises, naming the number, ValueError for one that is missing or below 1, TypeError for what is no whole number."""
    for name, value in numbers.items():
        known = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
        if value is None or (known and not value >= 1):
            raise ValueError(f"{name} ({value}) must be at least 1; got {value}")
        # One like 1e4 is fine; of infinity or a fraction no loop would find the end.
        if not known or not float(value).is_integer():
            raise TypeError(f"{name} ({value!r}) must be a whole number; got {type(value).__name__}")
