"""Timing: several calls in turn, so that a machine whose speed drifts does not favour one of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ["in_turn", "report"]


def in_turn(
    calls: Mapping[str, Callable[[], Any]], seconds: float = 2.0, rounds: int = 8, warm: int = 10
) -> dict[str, dict[str, float]]:
    """Median, 99th percentile (microseconds) and calls per second of every call.

    The calls take turns in slices of `seconds / rounds`, after `warm` calls each that do not count.
    """
    spans: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(warm):
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            until = time.perf_counter() + seconds / rounds
            while (begun := time.perf_counter()) < until:
                call()
                spans[name].append(time.perf_counter() - begun)
    return {name: _summary(sorted(times)) for name, times in spans.items()}


def report(title: str, rows: list[dict[str, Any]], path: str | None) -> None:
    """Prints `rows` as a table and, if a path is given, writes them as JSON."""
    table = Table(title=title)
    columns = list(rows[0]) if rows else []
    for column in columns:
        table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
    for row in rows:
        table.add_row(
            *(f"{row[column]:.2f}" if isinstance(row[column], float) else str(row[column]) for column in columns)
        )
    Console(width=120).print(table)
    if path is not None:
        Path(path).write_text(json.dumps({"title": title, "rows": rows}, indent=1))


def _summary(times: list[float]) -> dict[str, float]:
    return {
        "p50_us": times[len(times) // 2] * 1e6,
        "p99_us": times[int(len(times) * 0.99)] * 1e6,
        "per_s": len(times) / sum(times),
    }
