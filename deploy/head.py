"""The Ray that `up` starts: it outlives the command, and `down` stops it and no other."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from deploy.connection import accepts, own_ip, require_ray
from deploy.errors import DeployError
from deploy.settings import RayConfig
from deploy.state import RayRecord

__all__ = ["is_running", "start_head", "stop_head"]

START_TIMEOUT_S = 60.0
# Ray itself gives its processes half a minute to end their work.
STOP_TIMEOUT_S = 45.0
POLL_EVERY_S = 0.05


def start_head(config: RayConfig) -> RayRecord:
    """Start a Ray head node of our own in the background and wait until it listens.

    It is `ray start --head --block` in a session of its own: one process whose end is the end of all of that Ray.
    Its files lie apart from Ray's common folder, so that a plain `ray.init()` of this user does not run into it.

    Raises:
        DeployError: Ray is not installed, the port is taken, or Ray did not start; the last line of its log is shown.
    """
    require_ray()
    host = config.node_ip_address or own_ip()
    port = config.port if config.port is not None else _free_port()
    if config.port is not None and accepts(host, port):
        raise DeployError(f"ray.port ({port}) must be free on {host}; got one that somebody listens on")
    folder = Path(config.temp_dir) if config.temp_dir else _own_temp_dir(port)
    log = folder / f"head-{port}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        pid = _spawn(_command(config, host, port, folder), log)
    except OSError as error:
        raise DeployError(f"Ray ({str(folder)!r}) must be startable there; got {error.strerror}") from error
    record = RayRecord(
        address=f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        pid=pid,
        created_s=psutil.Process(pid).create_time(),
        temp_dir=str(folder),
        owns_temp_dir=config.temp_dir is None,
    )
    try:
        _wait(lambda: not is_running(record) or "Ray runtime started" in _text(log), START_TIMEOUT_S)
        if not is_running(record) or not accepts(host, port):
            raise DeployError(f"Ray (port {port}) must start on {host}; got: {_last_line(log)} (log {str(log)!r})")
    except DeployError:
        # The log is what tells why.
        stop_head(record, keep_files=True)
        raise
    except BaseException:
        stop_head(record)
        raise
    return record


def is_running(record: RayRecord) -> bool:
    """Whether that Ray's keeper is alive; another process that got its pid is not taken for it."""
    return _keeper(record) is not None


def stop_head(record: RayRecord, *, keep_files: bool = False) -> None:
    """Stop that Ray with every process in it, and remove its files if they were ours. Does nothing if it is gone."""
    keeper = _keeper(record)
    if keeper is not None:
        family = [keeper, *_children(keeper)]
        with contextlib.suppress(psutil.NoSuchProcess):
            keeper.terminate()
        _wait(lambda: not any(map(_alive, family)), STOP_TIMEOUT_S)
        for process in filter(_alive, family):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    if record.owns_temp_dir and not keep_files:
        shutil.rmtree(record.temp_dir, ignore_errors=True)


def _command(config: RayConfig, host: str, port: int, folder: Path) -> list[str]:
    options: dict[str, str | int | None] = {
        "--node-ip-address": host,
        "--port": port,
        "--include-dashboard": "false",
        "--temp-dir": str(folder),
        "--num-cpus": config.num_cpus,
        "--num-gpus": config.num_gpus,
        "--resources": json.dumps(dict(config.resources)) if config.resources else None,
        "--object-store-memory": config.object_store_memory_bytes,
        "--log-style": "record",
        "--log-color": "false",
        # Ray's fixed default would collide with any second Ray of this machine; the option exists with grpc only.
        "--ray-client-server-port": _free_port() if importlib.util.find_spec("grpc") else None,
    }
    given = [f"{key}={value}" for key, value in options.items() if value is not None]
    return [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats", *given]


def _spawn(command: list[str], log: Path) -> int:
    """Start `command` in a session of its own, out of reach of this terminal's signals, with its output in `log`."""
    # Not by subprocess: this child is meant to outlive us, nobody will wait for it.
    return os.posix_spawn(
        command[0],
        command,
        {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def _own_temp_dir(port: int) -> Path:
    # Short on purpose: Ray puts sockets below it, whose whole path may take 107 bytes.
    return Path(tempfile.gettempdir()) / f"replay-service-{os.getuid()}" / str(port)


def _keeper(record: RayRecord) -> psutil.Process | None:
    try:
        process = psutil.Process(record.pid)
        same = abs(process.create_time() - record.created_s) < 1.0
    except psutil.Error:
        return None
    return process if same and _alive(process) else None


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = process.children(recursive=True)
        return found
    except psutil.Error:
        return []


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _wait(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(POLL_EVERY_S)


def _text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in _text(log).splitlines() if line.strip()]
    return lines[-1] if lines else "nothing"
