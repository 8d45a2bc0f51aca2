from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from deploy.board import as_json, connect_lines, status_view
from deploy.launch import Launched
from deploy.state import ServiceRecord
from deploy.status import ServiceStatus, VerbStatus

SAMPLE = VerbStatus(1200, 307_200, 10**9, 2, 1.5, "distributed", "every leaf is a dense tensor", 12.34, 3158.4)
UP = ServiceStatus(
    name="replay",
    namespace="lab",
    address="10.0.0.1:6379",
    state="up",
    size=12_345,
    capacity=100_000,
    write_count=20_000,
    memory_bytes=1_234_567_890,
    uptime_s=3725.0,
    clients=4,
    transport="auto",
    rows_in_per_s=1520.4,
    rows_out_per_s=3158.4,
    batches_per_s=12.34,
    verbs={"sample": SAMPLE},
)
GONE = ServiceStatus("old", "lab", "10.0.0.1:6379", "gone", "service ('old') must be running; got none")


def shown(*statuses: ServiceStatus) -> str:
    text = io.StringIO()
    Console(width=160, file=text).print(status_view(statuses))
    return text.getvalue()


def test_the_table_tells_what_the_service_holds_and_does() -> None:
    text = shown(UP)
    for part in ("replay (lab)", "12,345", "100,000", "1.23 GB", "1,520", "3,158", "12.3", "1h 02m"):
        assert part in text
    for part in ("transport auto", "sample", "distributed", "every leaf is a dense tensor", "1,200", "307,200"):
        assert part in text


def test_a_service_that_is_gone_says_why() -> None:
    text = shown(UP, GONE)
    assert "old: service ('old') must be running; got none" in text
    assert "no bound" not in text


def test_no_bound_is_no_unknown() -> None:
    unbound = ServiceStatus("r", "n", "h:1", "up", size=5, memory_bytes=999, uptime_s=61.0, transport="ray")
    text = shown(unbound)
    for part in ("no bound", "999 B", "1m 01s"):
        assert part in text


def test_json_has_every_field_and_null_for_the_unknown() -> None:
    values = json.loads(as_json([UP, GONE]))["services"]
    assert values[0]["verbs"]["sample"]["why"] == "every leaf is a dense tensor"
    assert values[0]["size"] == 12_345
    assert values[1]["size"] is None
    assert values[1]["reason"].startswith("service ('old')")
    assert json.loads(as_json([])) == {"services": []}


def test_connect_lines_can_be_pasted() -> None:
    launched = Launched(ServiceRecord("my replay", "lab", "10.0.0.1:6379"), started_ray=True, needs_token=False)
    lines = connect_lines(launched, Path("/tmp/my state"))
    assert "    from clients import connect\n" in lines
    assert "    client = connect('my replay', namespace='lab', address='10.0.0.1:6379')\n" in lines
    assert "replay-service down 'my replay' --namespace lab --state-dir '/tmp/my state'\n" in lines
    assert "RAY_AUTH_MODE" not in lines


def test_connect_lines_leave_defaults_out() -> None:
    launched = Launched(ServiceRecord("r", "replay-service", "10.0.0.1:6379"), started_ray=False, needs_token=True)
    lines = connect_lines(launched, None)
    assert "    client = connect('r', address='10.0.0.1:6379')\n" in lines
    assert "replay-service status r\n" in lines
    assert '    os.environ["RAY_AUTH_MODE"] = "token"' in lines
    assert lines.index("RAY_AUTH_MODE") < lines.index("from clients")
    assert lines.endswith("~/.ray/auth_token.")
