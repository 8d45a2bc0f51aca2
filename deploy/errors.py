"""The operator's errors, leaves of the library's tree.

ReplayError
├── ConfigError (ValueError)    a configuration cannot work; nothing was started
└── DeployError (RuntimeError)  the machine, Ray or the record of what runs stands in the way
"""

from __future__ import annotations

from replay_service.errors import ReplayError

__all__ = ["ConfigError", "DeployError"]


class ConfigError(ReplayError, ValueError):
    """A configuration holds an unknown key, a wrong type or a value that cannot work. Nothing was started."""


class DeployError(ReplayError, RuntimeError):
    """The machine, Ray or the record of what runs stands in the way of a command."""
