from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.errors import DeployError
from deploy.state import RayRecord, ServiceRecord, State, StateFile, default_state_dir

RAY = RayRecord("10.0.0.1:6379", 12, 34.5, "/tmp/x", True)
ONE = ServiceRecord("one", "lab", RAY.address)
TWIN = ServiceRecord("one", "home", RAY.address)
FAR = ServiceRecord("far", "lab", "10.0.0.2:6379")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "deep" / "state")
    assert file.read() == State()
    state = State(RAY, (ONE, FAR))
    file.write(state)
    assert file.read() == state
    assert [path.name for path in file.folder.iterdir()] == ["state.json"]


def test_services_come_and_go_once() -> None:
    state = State(RAY).with_service(ONE).with_service(FAR).with_service(ONE)
    assert state.services == (FAR, ONE)
    assert state.without_service(ONE).services == (FAR,)
    assert state.without_ray() == State(None, (FAR,))


def test_pick_finds_the_one_meant() -> None:
    state = State(RAY, (ONE, TWIN, FAR))
    assert state.pick("far") == FAR
    assert state.pick("one", "home") == TWIN
    assert state.pick(None, None, FAR.address) == FAR
    assert State(RAY, (ONE,)).pick(None) == ONE
    assert state.pick("other", address="h:1") == ServiceRecord("other", "replay-service", "h:1")


def test_pick_says_what_is_there() -> None:
    state = State(RAY, (ONE, TWIN, FAR))
    with pytest.raises(DeployError, match=r"service \('one'\) must name one of those recorded; got 2: one in lab at"):
        state.pick("one")
    with pytest.raises(DeployError, match=r"service \(not named\) must name one of those recorded; got 3"):
        state.pick(None)
    with pytest.raises(DeployError, match=r"'fra'\) must be one .*; recorded here: far, one, did you mean far\?"):
        state.pick("fra")
    with pytest.raises(DeployError, match=r"service \(not named\) must be one .*; recorded here: none$"):
        State().pick(None)


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 2}', '{"format": 1, "ray": {"x": 1}, "services": []}'])
def test_a_file_that_is_not_ours_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text, encoding="utf-8")
    with pytest.raises(DeployError, match=r"^state file \('.*state.json'\) must be readable and of format 1; got "):
        StateFile(tmp_path).read()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    file = StateFile(tmp_path / "file" / "below")
    with pytest.raises(DeployError, match=r"^state folder \('.*below'\) must be writable; got "):
        file.write(State())
    with pytest.raises(DeployError, match=r"must be writable"), file.locked():
        pass


def test_the_file_is_plain_json(tmp_path: Path) -> None:
    StateFile(tmp_path).write(State(RAY, (ONE,)))
    values = json.loads((tmp_path / "state.json").read_text(encoding="utf-8"))
    assert values["services"] == [{"name": "one", "namespace": "lab", "address": "10.0.0.1:6379"}]


def test_two_commands_exclude_each_other(tmp_path: Path) -> None:
    # The lock belongs to an open file, so that two of one process exclude each other like two processes.
    busy = rf"^state folder \('{tmp_path}'\) must be free; got another replay-service command at work$"
    with StateFile(tmp_path).locked(), pytest.raises(DeployError, match=busy), StateFile(tmp_path).locked(0.1):
        pass
    with StateFile(tmp_path).locked(0.0):
        pass


def test_default_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_state_dir() == tmp_path / "replay-service"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_state_dir() == tmp_path / ".local" / "state" / "replay-service"
