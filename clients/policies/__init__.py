"""Policies that learn."""

from __future__ import annotations

from clients.policies.dqn import DQNPolicy, EpsilonSchedule, QNetwork

__all__ = ["DQNPolicy", "EpsilonSchedule", "QNetwork"]
