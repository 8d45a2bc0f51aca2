"""Where training tells its numbers: anything with `add_scalar(tag, value, step)`, as TensorBoard's `SummaryWriter` has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clients.collect_stats import CollectStats

__all__ = ["TensorboardLogger", "TrainingLogger", "as_logger"]


class TrainingLogger:
    """Tells nothing; the base of loggers. env_step counts environment steps of training, gradient_step updates."""

    def log_train(self, stats: CollectStats, env_step: int) -> None:
        """After every collect."""

    def log_test(self, stats: CollectStats, env_step: int) -> None:
        """After every test."""

    def log_update(self, losses: Mapping[str, float], gradient_step: int) -> None:
        """After every update."""


class TensorboardLogger(TrainingLogger):
    """Writes scalars to `writer`: train/… and test/… against environment steps, update/… against gradient steps.

    The intervals say how many steps must pass between two points of one curve; tests are counted in environment steps, too.
    """

    def __init__(
        self, writer: Any, *, train_interval: int = 1000, test_interval: int = 1, update_interval: int = 1000
    ) -> None:
        self._writer = writer
        self._intervals = {"train": train_interval, "test": test_interval, "update": update_interval}
        self._last: dict[str, int] = {}

    def log_train(self, stats: CollectStats, env_step: int) -> None:
        """Writes train/episode, train/reward and train/length, where episodes ended."""
        if stats.n_collected_episodes:
            values = {"episode": stats["n/ep"], "reward": stats["rew"], "length": stats["len"]}
            self._write("train", values, env_step)

    def log_test(self, stats: CollectStats, env_step: int) -> None:
        """Writes test/reward, test/length and their standard deviations."""
        values = {
            "reward": stats["rew"],
            "length": stats["len"],
            "reward_std": stats["rew_std"],
            "length_std": stats["len_std"],
        }
        self._write("test", values, env_step)

    def log_update(self, losses: Mapping[str, float], gradient_step: int) -> None:
        """Writes update/NAME for each loss."""
        self._write("update", losses, gradient_step)

    def _write(self, group: str, values: Mapping[str, float], step: int) -> None:
        last = self._last.get(group)
        if last is not None and step - last < self._intervals[group]:
            return
        self._last[group] = step
        for name, value in values.items():
            self._writer.add_scalar(f"{group}/{name}", value, global_step=step)


def as_logger(logger: Any) -> TrainingLogger:
    """`logger` itself, a `TensorboardLogger` on a `SummaryWriter`, or one that tells nothing for None.

    Raises TypeError for anything else.
    """
    if logger is None:
        return TrainingLogger()
    if isinstance(logger, TrainingLogger):
        return logger
    if callable(getattr(logger, "add_scalar", None)):
        return TensorboardLogger(logger)
    raise TypeError(
        f"logger ({type(logger).__name__}) must be a TrainingLogger or have add_scalar(), as a SummaryWriter"
    )
