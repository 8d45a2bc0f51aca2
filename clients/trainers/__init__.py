"""Trainers: the loop of collecting, learning and testing, as functions and as iterators over epochs."""

from __future__ import annotations

from clients.trainers.loggers import TensorboardLogger, TrainingLogger
from clients.trainers.offline import OfflineTrainer, offline_trainer
from clients.trainers.offpolicy import OffpolicyTrainer, offpolicy_trainer
from clients.trainers.onpolicy import OnpolicyTrainer, onpolicy_trainer
from clients.trainers.options import TrainerOptions

__all__ = [
    "OfflineTrainer",
    "OffpolicyTrainer",
    "OnpolicyTrainer",
    "TensorboardLogger",
    "TrainerOptions",
    "TrainingLogger",
    "offline_trainer",
    "offpolicy_trainer",
    "onpolicy_trainer",
]
