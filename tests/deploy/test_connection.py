from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy import connection
from deploy.connection import accepts, joined, prefer_token, require_ray
from deploy.errors import DeployError
from replay_service.errors import ServiceUnavailableError
from tests.conftest import RaySession

# Tries addresses one after the other in a process of its own: a Ray that is given up leaves a thread behind.
JOIN = """
import os, sys
from deploy.connection import joined, stuck_in_ray
for address in sys.argv[1:]:
    try:
        with joined(address, 2.0) as there:
            print("joined", there, stuck_in_ray())
    except Exception as error:
        print(type(error).__name__, error, stuck_in_ray())
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture
def mute_port() -> Iterator[int]:
    """A port where somebody listens who never says anything."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


@pytest.fixture
def closed_port(mute_port: int) -> int:
    """A port of this machine where nobody listens."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def test_accepts_tells_who_listens(mute_port: int, closed_port: int) -> None:
    assert accepts("127.0.0.1", mute_port)
    assert not accepts("127.0.0.1", closed_port)


def test_a_ray_is_joined_and_whatever_is_none_is_given_up(
    ray_session: RaySession, mute_port: int, closed_port: int
) -> None:
    closed, mute = f"127.0.0.1:{closed_port}", f"127.0.0.1:{mute_port}"
    command = [sys.executable, "-c", JOIN, closed, ray_session.address, ray_session.address, mute]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    refused = "ServiceUnavailableError Ray address ({!r}) must be that of a running Ray; got"
    assert done.stdout.splitlines() == [
        f"{refused.format(closed)} nobody who listens there False",
        f"joined {ray_session.address} False",
        f"joined {ray_session.address} False",
        f"{refused.format(mute)} no answer in time True",
    ]
    assert done.stderr == ""


def test_a_host_that_does_not_exist() -> None:
    with pytest.raises(ServiceUnavailableError, match="got nobody who listens there"):
        connection.probe("nowhere.invalid:1")


def test_the_ray_of_this_process_is_used_and_kept(ray_session: RaySession) -> None:
    import ray

    for given in ("auto", ray_session.address):
        with joined(given) as address:
            assert address == ray_session.address
    assert ray.is_initialized()


def test_another_ray_than_that_of_this_process_is_refused(ray_session: RaySession) -> None:
    with (
        pytest.raises(DeployError, match=rf"\('h:1'\) must be that of the Ray .*; got '{ray_session.address}'"),
        joined("h:1"),
    ):
        pass


def test_ray_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DeployError, match=r"^Ray \(missing\) must be installed"):
        require_ray()
    with pytest.raises(DeployError, match=r"^Ray \(missing\) must be installed"), joined("auto"):
        pass


def test_a_token_is_used_where_there_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    prefer_token()
    assert "RAY_AUTH_MODE" not in os.environ
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret", encoding="utf-8")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    prefer_token()
    assert os.environ["RAY_AUTH_MODE"] == "disabled"
    monkeypatch.delenv("RAY_AUTH_MODE")
    prefer_token()
    assert os.environ["RAY_AUTH_MODE"] == "token"
