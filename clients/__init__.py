"""Handles on a hosted buffer, and the processes that hold one."""

from __future__ import annotations

import importlib
from typing import Any

from clients.authentication import present_token
from clients.episodic_handle import EpisodicClient
from clients.futures import Future
from clients.handle import ReplayClient, connect

__all__ = [
    "AsyncCollector",
    "AsyncEnvironments",
    "CollectStats",
    "Collector",
    "CollectorGroup",
    "CollectorRecipe",
    "DQNPolicy",
    "DummyVectorEnv",
    "EpisodicClient",
    "Future",
    "Learner",
    "OfflineTrainer",
    "OffpolicyTrainer",
    "OnpolicyTrainer",
    "PPOPolicy",
    "Policy",
    "RemoteCollector",
    "ReplayClient",
    "SACPolicy",
    "TensorboardLogger",
    "VectorEnvironments",
    "VideoEncoding",
    "VideoWriter",
    "WeightsBox",
    "connect",
    "make_environments",
    "offline_trainer",
    "offpolicy_trainer",
    "onpolicy_trainer",
    "present_token",
    "start_collector",
]

LOOP = {
    "AsyncCollector": "clients.async_collector",
    "AsyncEnvironments": "clients.async_environments",
    "CollectStats": "clients.collect_stats",
    "Collector": "clients.collector",
    "CollectorGroup": "clients.collector_worker",
    "CollectorRecipe": "clients.collector_worker",
    "DQNPolicy": "clients.policies.dqn",
    "DummyVectorEnv": "clients.environments",
    "Learner": "clients.learner",
    "OfflineTrainer": "clients.trainers.offline",
    "OffpolicyTrainer": "clients.trainers.offpolicy",
    "OnpolicyTrainer": "clients.trainers.onpolicy",
    "PPOPolicy": "clients.policies.ppo",
    "Policy": "clients.policy",
    "RemoteCollector": "clients.remote_collector",
    "SACPolicy": "clients.policies.sac",
    "TensorboardLogger": "clients.trainers.loggers",
    "VectorEnvironments": "clients.environments",
    "VideoEncoding": "clients.video_file",
    "VideoWriter": "clients.video_writer",
    "WeightsBox": "clients.weights",
    "make_environments": "clients.environments",
    "offline_trainer": "clients.trainers.offline",
    "offpolicy_trainer": "clients.trainers.offpolicy",
    "onpolicy_trainer": "clients.trainers.onpolicy",
    "start_collector": "clients.remote_collector",
}
"""Names that need Gymnasium, imported when they are first asked for: a handle works without it."""


def __getattr__(name: str) -> Any:
    if name in LOOP:
        return getattr(importlib.import_module(LOOP[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
