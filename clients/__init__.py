"""Handles on a hosted buffer, and the processes that hold one."""

from __future__ import annotations

from clients.authentication import present_token
from clients.futures import Future
from clients.handle import ReplayClient, connect

__all__ = ["Future", "ReplayClient", "connect", "present_token"]
