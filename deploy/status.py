"""What running services do: two looks at their counters, and the rates in between."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from deploy.connection import joined
from deploy.state import ServiceRecord
from replay_service.errors import ReplayError, ServiceUnavailableError

__all__ = ["ServiceStatus", "VerbStatus", "between", "observe", "observe_once", "without_answer"]

WRITING_VERBS = ("extend", "add", "write_all")
STATS_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class VerbStatus:
    """One kind of call.

    Attributes:
        calls, rows, size_bytes, errors: counted since the service began.
        busy_s: time spent on them, in seconds.
        route, why: how they travel, and the reason.
        calls_per_s, rows_per_s: between the two looks; None where there was only one.
    """

    calls: int
    rows: int
    size_bytes: int
    errors: int
    busy_s: float
    route: str
    why: str
    calls_per_s: float | None
    rows_per_s: float | None


@dataclass(frozen=True)
class ServiceStatus:
    """One service at one moment.

    Attributes:
        name, namespace, address: where it is.
        state: `"up"`, `"gone"` (its Ray is there, it is not) or `"unreachable"`.
        reason: why it is not up, else `""`.
        size, capacity: records; `capacity` is None without a bound.
        memory_bytes: resident memory of its process.
        uptime_s: seconds since it began.
        clients: open clients, without the one that asks.
        transport: as configured.
        rows_in_per_s, rows_out_per_s, batches_per_s: written rows, sampled rows and sampled batches between two looks.
        verbs: by name.
    """

    name: str
    namespace: str
    address: str
    state: str
    reason: str = ""
    size: int | None = None
    capacity: int | None = None
    write_count: int | None = None
    memory_bytes: int | None = None
    uptime_s: float | None = None
    clients: int | None = None
    transport: str | None = None
    rows_in_per_s: float | None = None
    rows_out_per_s: float | None = None
    batches_per_s: float | None = None
    verbs: Mapping[str, VerbStatus] = field(default_factory=dict)


def observe(records: Sequence[ServiceRecord], interval_s: float) -> Generator[list[ServiceStatus], None, None]:
    """Look again and again at services of one Ray; each item tells what happened in the `interval_s` before it.

    Raises:
        ServiceUnavailableError: their Ray cannot be reached.
        DeployError: Ray is not installed.
    """
    with joined(records[0].address):
        probes = [_Probe(record) for record in records]
        try:
            earlier = [probe.look() for probe in probes]
            while True:
                time.sleep(interval_s)
                later = [probe.look() for probe in probes]
                yield [probe.status(*pair) for probe, *pair in zip(probes, earlier, later, strict=True)]
                earlier = later
        finally:
            for probe in probes:
                probe.close()


def observe_once(records: Sequence[ServiceRecord], interval_s: float) -> list[ServiceStatus]:
    """Look twice at services of any number of Rays, one Ray after the other; rates are over `interval_s`.

    Raises:
        DeployError: Ray is not installed.
    """
    found: dict[ServiceRecord, ServiceStatus] = {}
    for address in {record.address: None for record in records}:
        group = [record for record in records if record.address == address]
        try:
            with contextlib.closing(observe(group, interval_s)) as looks:
                found |= zip(group, next(looks), strict=True)
        except ServiceUnavailableError as error:
            found |= {record: without_answer(record, "unreachable", error) for record in group}
    return [found[record] for record in records]


def between(record: ServiceRecord, earlier: Mapping[str, Any] | None, later: Mapping[str, Any]) -> ServiceStatus:
    """The status that two answers of `client.stats()` tell; rates are per second of the service's own clock."""
    service = later["service"]
    span_s = None if earlier is None else service["uptime_s"] - earlier["service"]["uptime_s"]
    # A service that was started anew counts from zero again.
    before = earlier["service"]["verbs"] if earlier is not None and span_s is not None and span_s > 0 else None
    verbs = {
        name: _verb(counters, None if before is None else before.get(name, {}), span_s or 0.0)
        for name, counters in service["verbs"].items()
    }

    def rate(names: tuple[str, ...], counter: str) -> float | None:
        rates = [getattr(verbs[name], counter) for name in names if name in verbs]
        return None if before is None else float(sum(rates))

    return ServiceStatus(
        name=record.name,
        namespace=record.namespace,
        address=record.address,
        state="up",
        size=later["size"],
        capacity=later["capacity"],
        write_count=later["write_count"],
        memory_bytes=service["memory_bytes"],
        uptime_s=service["uptime_s"],
        clients=max(service["clients"] - 1, 0),
        transport=service["transport"],
        rows_in_per_s=rate(WRITING_VERBS, "rows_per_s"),
        rows_out_per_s=rate(("sample",), "rows_per_s"),
        batches_per_s=rate(("sample",), "calls_per_s"),
        verbs=verbs,
    )


def without_answer(record: ServiceRecord, state: str, error: BaseException) -> ServiceStatus:
    """The status of a service that did not answer."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return ServiceStatus(record.name, record.namespace, record.address, state, reason)


class _Probe:
    """Asks one service for its counters; connects anew after a failure."""

    def __init__(self, record: ServiceRecord) -> None:
        self._record = record
        self._client: Any = None

    def look(self) -> Mapping[str, Any] | ReplayError:
        from clients import connect

        try:
            if self._client is None:
                self._client = connect(self._record.name, namespace=self._record.namespace)
            stats: Mapping[str, Any] = self._client.stats(timeout=STATS_TIMEOUT_S)
        except ReplayError as error:
            self.close()
            return error
        return stats

    def status(self, earlier: Mapping[str, Any] | ReplayError, later: Mapping[str, Any] | ReplayError) -> ServiceStatus:
        if isinstance(later, ReplayError):
            state = "gone" if isinstance(later, ServiceUnavailableError) else "unreachable"
            return without_answer(self._record, state, later)
        return between(self._record, None if isinstance(earlier, ReplayError) else earlier, later)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def _verb(now: Mapping[str, Any], before: Mapping[str, Any] | None, span_s: float) -> VerbStatus:
    def rate(counter: str) -> float | None:
        return None if before is None else float((now[counter] - before.get(counter, 0)) / span_s)

    return VerbStatus(
        calls=now["calls"],
        rows=now["rows"],
        size_bytes=now["bytes"],
        errors=now["errors"],
        busy_s=now["busy_s"],
        route=now["route"],
        why=now["why"],
        calls_per_s=rate("calls"),
        rows_per_s=rate("rows"),
    )
