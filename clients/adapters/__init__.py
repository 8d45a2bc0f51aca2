"""Handles in the shape that other libraries' loops expect. None of these libraries is needed to import this package."""

from __future__ import annotations

from clients.adapters.sb3 import SB3ReplayBuffer
from clients.adapters.tianshou import tianshou_buffer
from clients.adapters.torchrl import TorchRLBuffer

__all__ = ["SB3ReplayBuffer", "TorchRLBuffer", "tianshou_buffer"]
