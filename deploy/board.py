"""How a service's status looks: tables for people, JSON for programs, and the lines that tell how to connect."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from deploy.launch import Launched
from deploy.settings import DEFAULT_NAMESPACE
from deploy.state import ServiceRecord
from deploy.status import ServiceStatus

__all__ = ["as_json", "connect_lines", "status_view"]

UNKNOWN = "-"
STATE_STYLES = {"up": "green", "gone": "red", "unreachable": "red"}


def as_json(statuses: Sequence[ServiceStatus], indent: int | None = 2) -> str:
    """`{"services": […]}` with the fields of `ServiceStatus`, null where unknown; one line if `indent` is None."""
    return json.dumps({"services": [dataclasses.asdict(status) for status in statuses]}, indent=indent)


def status_view(statuses: Sequence[ServiceStatus]) -> RenderableType:
    """One table of services and, for each that is up, one of how its calls travel."""
    parts: list[RenderableType] = [_services(statuses)]
    for status in statuses:
        if status.state != "up":
            parts.append(Text(f"{status.name}: {status.reason}", style=STATE_STYLES[status.state]))
        elif status.verbs:
            parts.append(_verbs(status))
    return Group(*parts)


def connect_lines(launched: Launched, state_dir: Path | None) -> str:
    """What to paste: Python lines for a client, shell lines for the operator."""
    service = launched.service
    namespace = "" if service.namespace == DEFAULT_NAMESPACE else f"namespace={service.namespace!r}, "
    options = _shell_options(service, state_dir)
    lines = [f"{service.name!r} is up in the Ray at {service.address}. To connect:", ""]
    if launched.needs_token:
        # Ray looks for a token by itself only where it finds the address by itself.
        lines += ["    import os", "", '    os.environ["RAY_AUTH_MODE"] = "token"  # before Ray is imported', ""]
    lines += [
        "    from clients import connect",
        "",
        f"    client = connect({service.name!r}, {namespace}address={service.address!r})",
        "",
        f"Look at it:    replay-service status {options}",
        f"Stop it:       replay-service down {options}",
        f"Add a machine: ray start --address={service.address}",
    ]
    if launched.needs_token:
        lines.append("Other machines and users need a copy of this user's ~/.ray/auth_token.")
    return "\n".join(lines)


def _shell_options(service: ServiceRecord, state_dir: Path | None) -> str:
    words = [service.name]
    if service.namespace != DEFAULT_NAMESPACE:
        words += ["--namespace", service.namespace]
    if state_dir is not None:
        words += ["--state-dir", str(state_dir)]
    return shlex.join(words)


def _services(statuses: Sequence[ServiceStatus]) -> Table:
    table = Table(title="Replay services", title_justify="left")
    table.add_column("service", no_wrap=True)
    table.add_column("state")
    for heading in ("size", "capacity", "memory", "rows in/s", "rows out/s", "batches/s", "clients", "up for"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in statuses:
        table.add_row(
            f"{one.name} ({one.namespace})",
            Text(one.state, style=STATE_STYLES[one.state]),
            _count(one.size),
            "no bound" if one.state == "up" and one.capacity is None else _count(one.capacity),
            _bytes(one.memory_bytes),
            _rate(one.rows_in_per_s),
            _rate(one.rows_out_per_s),
            _rate(one.batches_per_s),
            _count(one.clients),
            _duration(one.uptime_s),
        )
    return table


def _verbs(status: ServiceStatus) -> Table:
    table = Table(title=f"{status.name}: transport {status.transport}", title_justify="left")
    for heading in ("call", "travels by"):
        table.add_column(heading, no_wrap=True)
    table.add_column("because", overflow="fold")
    for heading in ("calls", "rows", "calls/s", "rows/s", "errors"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, verb in status.verbs.items():
        errors = Text(_count(verb.errors), style="red" if verb.errors else "")
        rates = (_rate(verb.calls_per_s), _rate(verb.rows_per_s))
        table.add_row(name, verb.route, verb.why, _count(verb.calls), _count(verb.rows), *rates, errors)
    return table


def _count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def _rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.1f}"


def _bytes(value: int | None) -> str:
    if value is None:
        return UNKNOWN
    amount = float(value)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m" if hours else f"{minutes}m {rest:02d}s" if minutes else f"{rest}s"
