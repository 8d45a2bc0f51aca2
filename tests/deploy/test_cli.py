from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from deploy import cli
from deploy.cli import app
from deploy.launch import Launched, Stopped
from deploy.state import ServiceRecord, State, StateFile
from deploy.status import ServiceStatus

ONE = ServiceRecord("one", "lab", "10.0.0.1:6379")
FAR = ServiceRecord("far", "lab", "10.0.0.2:6379")


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def recorded(state_dir: Path) -> Path:
    """A state folder that knows two services of two Rays."""
    StateFile(state_dir).write(State(None, (ONE, FAR)))
    return state_dir


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def complaint(result: Result) -> str:
    """The one line on stderr."""
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


def test_commands_are_listed() -> None:
    shown = run("--help").stdout
    for command in ("up", "status", "down", "demo"):
        assert command in shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[servcie]", "servcie ({}) must be a known key"),
        (
            '[service]\nname = "x"\n[storage]\nkind = "LazyTensorStorage"\ncapacity = -1',
            "storage.capacity (-1) must be",
        ),
        ("x = = 1", "not valid TOML"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, state_dir: Path, text: str, message: str) -> None:
    (tmp_path / "bad.toml").write_text(text, encoding="utf-8")
    result = run("up", tmp_path / "bad.toml", "--state-dir", state_dir)
    assert result.exit_code == 2
    assert complaint(result).startswith(f"replay-service: {tmp_path / 'bad.toml'}: {message}")
    assert not state_dir.exists()


def test_a_file_that_is_missing_is_one_line(state_dir: Path) -> None:
    result = run("up", "nowhere.toml", "--state-dir", state_dir)
    assert result.exit_code == 2
    assert complaint(result).startswith("replay-service: file ('nowhere.toml') must be a TOML file or a preset (")


def test_names_that_are_not_recorded(recorded: Path) -> None:
    for command in ("status", "down"):
        result = run(command, "onne", "--state-dir", recorded)
        assert result.exit_code == 1
        assert complaint(result) == (
            "replay-service: service ('onne') must be one that `up` brought up; "
            "recorded here: far, one, did you mean one?"
        )
    result = run("down", "--state-dir", recorded)
    assert result.exit_code == 1
    assert "must name one of those recorded; got 2: one in lab at 10.0.0.1:6379" in complaint(result)


def test_nothing_recorded_is_no_failure(state_dir: Path) -> None:
    result = run("status", "--state-dir", state_dir)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "No service is recorded here" in result.stdout
    assert json.loads(run("status", "--json", "--state-dir", state_dir).stdout) == {"services": []}
    assert run("down", "--all", "--state-dir", state_dir).stdout == "Nothing is recorded here.\n"


def test_all_stands_alone(recorded: Path) -> None:
    result = run("down", "one", "--all", "--state-dir", recorded)
    assert result.exit_code == 2
    assert complaint(result).startswith("replay-service: --all (given) must stand alone")


def test_a_state_file_of_somebody_else(state_dir: Path) -> None:
    state_dir.mkdir()
    (state_dir / "state.json").write_text("{}", encoding="utf-8")
    result = run("status", "--state-dir", state_dir)
    assert result.exit_code == 1
    assert "state.json') must be readable and of format 1" in complaint(result)


def test_up_passes_options_on_and_prints_how_to_connect(monkeypatch: pytest.MonkeyPatch, state_dir: Path) -> None:
    seen: list[Any] = []

    def bring_up(config: Any, file: StateFile, *, report: Any) -> Launched:
        seen.append((config, file.folder))
        report("Starting Ray")
        return Launched(ServiceRecord(config.service.name, config.service.namespace, "h:1"), True, False)

    monkeypatch.setattr(cli, "bring_up", bring_up)
    options = ("--name", "mine", "--namespace", "lab", "--address", "h:1")
    result = run("up", "small", *options, "--state-dir", state_dir)
    ((config, folder),) = seen
    assert (config.service.name, config.service.namespace, config.ray.address) == ("mine", "lab", "h:1")
    assert (folder, result.exit_code) == (state_dir, 0)
    assert "client = connect('mine', namespace='lab', address='h:1')" in result.stdout
    assert result.stderr == "Starting Ray …\n"


def test_down_says_what_it_did(monkeypatch: pytest.MonkeyPatch, recorded: Path) -> None:
    seen: list[Any] = []

    def take_down(file: StateFile, target: ServiceRecord | None, **options: Any) -> Stopped:
        seen.append((target, options["timeout_s"], options["keep_ray"], options["forget"]))
        return Stopped((ONE,), (FAR,), "10.0.0.1:6379", None)

    monkeypatch.setattr(cli, "take_down", take_down)
    result = run("down", "one", "--timeout", "3", "--keep-ray", "--forget", "--state-dir", recorded)
    assert seen == [(ONE, 3.0, True, True)]
    assert result.stdout == "'one' is down.\n'far' was gone already.\nThe Ray at 10.0.0.1:6379 is down.\n"
    run("down", "--all", "--state-dir", recorded)
    assert seen[-1] == (None, 30.0, False, False)


@pytest.mark.parametrize(
    ("words", "interval"),
    [(["--watch"], 1.0), (["--watch", "2"], 2.0), (["--watch=0.5"], 0.5), (["--watch", "--interval", "3"], 3.0)],
)
def test_watch_may_take_its_interval(
    monkeypatch: pytest.MonkeyPatch, recorded: Path, words: list[str], interval: float
) -> None:
    seen: list[Any] = []

    def observe(records: list[ServiceRecord], interval_s: float) -> Iterator[list[ServiceStatus]]:
        seen.append((records, interval_s))
        yield [ServiceStatus("one", "lab", "h:1", "up")]
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "observe", observe)
    result = run("status", *words, "one", "--state-dir", recorded)
    assert seen == [([ONE], interval)]
    assert (result.exit_code, result.stderr) == (0, "")
    assert "one (lab)" in result.stdout


def test_watch_is_for_one_ray(recorded: Path) -> None:
    result = run("status", "--watch", "--state-dir", recorded)
    assert result.exit_code == 1
    assert "--watch (10.0.0.1:6379, 10.0.0.2:6379) must be for services of one Ray" in complaint(result)


def test_a_service_that_is_not_up_is_a_failure_where_it_is_named(
    monkeypatch: pytest.MonkeyPatch, recorded: Path
) -> None:
    gone = ServiceStatus("one", "lab", "10.0.0.1:6379", "gone", "it died")
    monkeypatch.setattr(cli, "observe_once", lambda records, interval_s: [gone] * len(records))
    assert run("status", "--state-dir", recorded).exit_code == 0
    result = run("status", "one", "--json", "--state-dir", recorded)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["services"][0]["state"] == "gone"
    assert result.stderr == "replay-service: one: it died\n"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "replay-service: interrupted"),
        (RuntimeError("first\nsecond"), 1, "replay-service: first"),
        (RuntimeError(), 1, "replay-service: RuntimeError"),
    ],
)
def test_any_failure_is_one_line(
    monkeypatch: pytest.MonkeyPatch, recorded: Path, error: BaseException, code: int, line: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(cli, "take_down", fail)
    result = run("down", "one", "--state-dir", recorded)
    assert (result.exit_code, complaint(result)) == (code, line)


def test_the_traceback_can_be_asked_for(monkeypatch: pytest.MonkeyPatch, recorded: Path) -> None:
    monkeypatch.setenv("REPLAY_SERVICE_TRACEBACK", "1")
    result = run("down", "onne", "--state-dir", recorded)
    assert "must be one that `up` brought up" in str(result.exception)


@pytest.mark.parametrize("words", [("up",), ("status", "--interval", "0"), ("down", "--nonsense"), ("nonsense",)])
def test_misuse_is_told_apart(words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr


def test_ray_missing_is_one_line(monkeypatch: pytest.MonkeyPatch, state_dir: Path) -> None:
    monkeypatch.setattr("deploy.connection.importlib.util.find_spec", lambda name: None)
    result = run("up", "small", "--state-dir", state_dir)
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "Starting Ray …",
        "replay-service: Ray (missing) must be installed to run services; got no module named 'ray': pip install ray",
    ]
