from __future__ import annotations

import copy
from typing import Any

import pytest

from deploy.state import ServiceRecord
from deploy.status import between, observe_once, without_answer
from replay_service.errors import ServiceUnavailableError

RECORD = ServiceRecord("replay", "lab", "10.0.0.1:6379")


def stats(uptime_s: float = 10.0, **calls: int) -> dict[str, Any]:
    """An answer of `client.stats()`, each verb with so many calls of 32 rows."""
    verbs = {
        name: {
            "calls": count,
            "rows": 32 * count,
            "bytes": 640 * count,
            "errors": 0,
            "busy_s": 0.5,
            "route": "ray",
            "why": "transport is 'ray'",
        }
        for name, count in calls.items()
    }
    return {
        "size": 100,
        "capacity": 1000,
        "write_count": 250,
        "service": {
            "name": "replay",
            "namespace": "lab",
            "uptime_s": uptime_s,
            "memory_bytes": 5_000_000,
            "clients": 3,
            "transport": "ray",
            "verbs": verbs,
        },
    }


def test_rates_are_per_second_of_the_services_clock() -> None:
    status = between(RECORD, stats(10.0, extend=5, add=1, sample=20), stats(12.0, extend=9, add=3, sample=30))
    assert status.rows_in_per_s == pytest.approx(32 * (4 + 2) / 2)
    assert status.rows_out_per_s == pytest.approx(32 * 10 / 2)
    assert status.batches_per_s == pytest.approx(5)
    assert status.verbs["extend"].calls_per_s == pytest.approx(2)
    assert status.verbs["extend"].rows_per_s == pytest.approx(64)
    assert (status.verbs["extend"].calls, status.verbs["extend"].size_bytes) == (9, 5760)
    assert (status.size, status.capacity, status.write_count, status.memory_bytes) == (100, 1000, 250, 5_000_000)
    assert (status.state, status.transport, status.uptime_s) == ("up", "ray", 12.0)


def test_who_asks_is_not_counted() -> None:
    assert between(RECORD, None, stats()).clients == 2


def test_one_look_gives_no_rates() -> None:
    status = between(RECORD, None, stats(sample=3))
    assert (status.rows_in_per_s, status.rows_out_per_s, status.batches_per_s) == (None, None, None)
    assert status.verbs["sample"].calls_per_s is None


def test_a_service_that_began_anew_gives_no_rates() -> None:
    status = between(RECORD, stats(50.0, sample=100), stats(1.0, sample=3))
    assert status.batches_per_s is None


def test_a_verb_first_called_between_the_looks_counts_from_zero() -> None:
    status = between(RECORD, stats(1.0), stats(2.0, sample=4))
    assert status.batches_per_s == pytest.approx(4)
    assert status.rows_in_per_s == 0


def test_answers_are_not_changed() -> None:
    earlier, later = stats(1.0, sample=1), stats(2.0, sample=2)
    kept = copy.deepcopy((earlier, later))
    between(RECORD, earlier, later)
    assert (earlier, later) == kept


def test_one_line_says_why_there_is_no_answer() -> None:
    status = without_answer(RECORD, "gone", ServiceUnavailableError("first\nsecond"))
    assert (status.state, status.reason, status.size) == ("gone", "first", None)
    assert without_answer(RECORD, "gone", ServiceUnavailableError()).reason == "ServiceUnavailableError"


def test_nothing_to_look_at_needs_no_ray() -> None:
    assert observe_once([], 0.1) == []
