"""Handles on a hosted buffer, and the processes that hold one."""

from __future__ import annotations

import importlib
from typing import Any

from clients.authentication import present_token
from clients.futures import Future
from clients.handle import ReplayClient, connect

__all__ = [
    "Collector",
    "CollectorGroup",
    "CollectorRecipe",
    "DQNPolicy",
    "Future",
    "Learner",
    "PPOPolicy",
    "Policy",
    "ReplayClient",
    "SACPolicy",
    "VectorEnvironments",
    "VideoEncoding",
    "VideoWriter",
    "WeightsBox",
    "connect",
    "make_environments",
    "present_token",
]

LOOP = {
    "Collector": "clients.collector",
    "CollectorGroup": "clients.collector_worker",
    "CollectorRecipe": "clients.collector_worker",
    "DQNPolicy": "clients.policies.dqn",
    "Learner": "clients.learner",
    "PPOPolicy": "clients.policies.ppo",
    "Policy": "clients.policy",
    "SACPolicy": "clients.policies.sac",
    "VectorEnvironments": "clients.environments",
    "VideoEncoding": "clients.video_file",
    "VideoWriter": "clients.video_writer",
    "WeightsBox": "clients.weights",
    "make_environments": "clients.environments",
}
"""Names that need Gymnasium, imported when they are first asked for: a handle works without it."""


def __getattr__(name: str) -> Any:
    if name in LOOP:
        return getattr(importlib.import_module(LOOP[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
