"""Policies that learn."""

from __future__ import annotations

from clients.policies.dqn import DQNPolicy, EpsilonSchedule, QNetwork
from clients.policies.ppo import PPOPolicy
from clients.policies.sac import SACPolicy

__all__ = ["DQNPolicy", "EpsilonSchedule", "PPOPolicy", "QNetwork", "SACPolicy"]
