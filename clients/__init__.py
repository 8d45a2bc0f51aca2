"""Handles on a hosted buffer, and the processes that hold one."""

from __future__ import annotations

from clients.futures import Future
from clients.handle import ReplayClient, connect

__all__ = ["Future", "ReplayClient", "connect"]
