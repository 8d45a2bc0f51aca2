"""What a service counts: calls, rows, bytes, errors and busy seconds, per verb."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass
from typing import Any

from replay_service.wire.verbs import Verb

__all__ = ["Meter", "Meters"]


@dataclass(slots=True)
class Meter:
    """Counts of one verb since the service started.

    Attributes:
        calls: requests answered.
        rows: records moved.
        bytes: request and reply bytes.
        errors: requests answered with an error.
        busy_s: seconds spent inside the service.
        route: the channel of the latest request.
    """

    calls: int = 0
    rows: int = 0
    bytes: int = 0
    errors: int = 0
    busy_s: float = 0.0
    route: str = ""


class Meters:
    """One meter per verb, safe for several threads."""

    def __init__(self) -> None:
        self._meters: dict[Verb, Meter] = {}
        self._lock = threading.Lock()

    def served(self, verb: Verb, route: str, rows: int, size_bytes: int, seconds: float) -> None:
        """Counts a request that was answered."""
        with self._lock:
            meter = self._meters.setdefault(verb, Meter())
            meter.calls += 1
            meter.rows += rows
            meter.bytes += size_bytes
            meter.busy_s += seconds
            meter.route = route

    def failed(self, verb: Verb | None, route: str) -> None:
        """Counts a request that was answered with an error; None for one that named no verb."""
        if verb is None:
            return
        with self._lock:
            meter = self._meters.setdefault(verb, Meter())
            meter.errors += 1
            meter.route = route

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """The counts by verb name, ready for JSON."""
        with self._lock:
            return {verb.name.lower(): asdict(meter) for verb, meter in sorted(self._meters.items())}
