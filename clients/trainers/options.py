"""What all trainers can be told besides how much to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["TrainerOptions"]


@dataclass(frozen=True, kw_only=True)
class TrainerOptions:
    """Options of every trainer.

    train_fn(epoch, env_step): called before every collect. test_fn(epoch, env_step): before every test.
    stop_fn(mean return): training is over once it is True of the best test. save_best_fn(policy): whenever a test is better
    than all before, and after the first one. save_checkpoint_fn(epoch, env_step, gradient_step): after every epoch.
    checkpoint: file to which the run's state is written after every epoch. resume: go on from that file, if it exists.
    logger: a `TrainingLogger` or a `SummaryWriter`. reward_metric: from returns `[episodes, …]` to one number each.
    test_in_train: where stop_fn is True of the returns of a collect, test at once, and stop if it is True of that test, too;
    None: wherever there is a stop_fn.
    show_progress: a bar on a terminal. verbose: a line after every epoch. prefetch: batches that off-policy updates ask
    for ahead, where the buffer can (a handle); 0 for none.
    """

    train_fn: Callable[[int, int], Any] | None = None
    test_fn: Callable[[int, int], Any] | None = None
    stop_fn: Callable[[float], bool] | None = None
    save_best_fn: Callable[[Any], Any] | None = None
    save_checkpoint_fn: Callable[[int, int, int], Any] | None = None
    checkpoint: str | Path | None = None
    resume: bool = False
    logger: Any = None
    reward_metric: Callable[[np.ndarray], np.ndarray] | None = None
    test_in_train: bool | None = None
    show_progress: bool = True
    verbose: bool = True
    prefetch: int = 2

    def __post_init__(self) -> None:
        if self.resume and self.checkpoint is None:
            raise ValueError("resume (True) must come with checkpoint, the file to go on from; got None")
        if self.test_in_train and self.stop_fn is None:
            raise ValueError("test_in_train (True) must come with stop_fn, which says when a test is due; got None")
        if self.prefetch < 0:
            raise ValueError(f"prefetch ({self.prefetch}) must be at least 0; got {self.prefetch}")
