"""Who uses a service: clients that said so, until they say goodbye, die or are not heard of for too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

__all__ = ["Roster"]

LEASE_S = 300.0
"""How long a client counts that is not heard of; handles in use renew five times as often."""


@dataclass(slots=True)
class Guest:
    """Where a client lives, and when it was heard of."""

    host: str
    pid: int
    seen_s: float


class Roster:
    """Counts open clients. Those in a process of this host that has ended do not count, whatever their lease says.

    Args:
        host: this host's address.
        lease_s: how long a client counts without a word, in seconds.
        clock: the time in seconds.
    """

    def __init__(self, host: str, lease_s: float = LEASE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self._lease_s = lease_s
        self._clock = clock
        self._guests: dict[str, Guest] = {}
        self._lock = threading.Lock()

    def seen(self, client_id: str, host: str, pid: int) -> None:
        """Counts a client, or renews its lease."""
        with self._lock:
            self._guests[client_id] = Guest(host, pid, self._clock())

    def gone(self, client_id: str) -> None:
        """Stops counting a client."""
        with self._lock:
            self._guests.pop(client_id, None)

    def __len__(self) -> int:
        """Clients that are open, as far as one can tell."""
        with self._lock:
            now = self._clock()
            self._guests = {name: guest for name, guest in self._guests.items() if self._is_there(guest, now)}
            return len(self._guests)

    def _is_there(self, guest: Guest, now: float) -> bool:
        if now - guest.seen_s > self._lease_s:
            return False
        return guest.host != self._host or psutil.pid_exists(guest.pid)
