"""Counts per verb."""

from __future__ import annotations

import json
import threading

from replay_service.service.meters import Meters
from replay_service.wire.verbs import Verb


def test_requests_are_added_up_per_verb() -> None:
    meters = Meters()
    meters.served(Verb.SAMPLE, "ray", 8, 100, 0.5)
    meters.served(Verb.SAMPLE, "distributed", 4, 50, 0.25)
    meters.served(Verb.EXTEND, "ray", 1, 10, 0.125)
    meters.failed(Verb.ADD, "ray")
    meters.failed(None, "ray")  # no verb could be read
    found = meters.snapshot()
    assert list(found) == ["extend", "add", "sample"]
    assert found["sample"] == {
        "calls": 2,
        "rows": 12,
        "bytes": 150,
        "errors": 0,
        "busy_s": 0.75,
        "route": "distributed",
    }
    assert (found["add"]["calls"], found["add"]["errors"]) == (0, 1)
    assert json.loads(json.dumps(found)) == found


def test_a_snapshot_stays_what_it_was() -> None:
    meters = Meters()
    meters.served(Verb.SAMPLE, "ray", 8, 100, 0.5)
    found = meters.snapshot()
    meters.served(Verb.SAMPLE, "ray", 8, 100, 0.5)
    assert found["sample"]["calls"] == 1


def test_threads_lose_no_count() -> None:
    meters = Meters()

    def count() -> None:
        for _ in range(2000):
            meters.served(Verb.SAMPLE, "ray", 1, 1, 0.0)
            meters.failed(Verb.SAMPLE, "ray")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = meters.snapshot()["sample"]
    assert (found["calls"], found["rows"], found["errors"]) == (8000, 8000, 8000)
