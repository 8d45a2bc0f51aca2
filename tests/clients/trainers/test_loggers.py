from __future__ import annotations

import numpy as np

from clients.collect_stats import CollectStats
from clients.trainers.loggers import TensorboardLogger, TrainingLogger, as_logger
from tests.clients.trainers.test_trainers import Setup


class Writer:
    """Has the call of a SummaryWriter that loggers use."""

    def __init__(self) -> None:
        self.points: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        assert global_step is not None
        self.points.append((tag, scalar_value, global_step))

    def curve(self, tag: str) -> list[tuple[float, int]]:
        return [(value, step) for name, value, step in self.points if name == tag]


def stats(*returns: float) -> CollectStats:
    return CollectStats(4, len(returns), np.array(returns), np.full(len(returns), 2), 0.1)


def test_a_writer_gets_the_curves_of_a_run() -> None:
    writer = Writer()
    logger = TensorboardLogger(writer, train_interval=1, update_interval=3)
    Setup().offpolicy(logger=logger).run()
    assert writer.curve("test/reward") == [(3.0, 0), (3.0, 12), (3.0, 24)]
    assert writer.curve("test/reward_std") == [(0.0, 0), (0.0, 12), (0.0, 24)]
    assert [step for _, step in writer.curve("train/reward")] == [8, 12, 20, 24]
    assert writer.curve("update/loss") == [(1.0, 1), (2.5, 4), (4.0, 7), (5.5, 10)]


def test_points_keep_their_distance() -> None:
    writer = Writer()
    logger = TensorboardLogger(writer, train_interval=10, test_interval=20)
    for step in range(0, 40, 5):
        logger.log_train(stats(1.0, 3.0), step)
        logger.log_train(stats(), step)
        logger.log_test(stats(1.0, 3.0), step)
    assert writer.curve("train/reward") == [(2.0, step) for step in (0, 10, 20, 30)]
    assert writer.curve("train/length") == [(2.0, step) for step in (0, 10, 20, 30)]
    assert writer.curve("test/reward") == [(2.0, 0), (2.0, 20)]


def test_anything_with_add_scalar_will_do() -> None:
    logger = TrainingLogger()
    assert as_logger(logger) is logger
    assert type(as_logger(None)) is TrainingLogger
    assert isinstance(as_logger(Writer()), TensorboardLogger)
