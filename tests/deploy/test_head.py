from __future__ import annotations

import dataclasses
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deploy.connection import accepts, own_ip
from deploy.errors import DeployError
from deploy.head import is_running, start_head, stop_head
from deploy.settings import RayConfig
from deploy.state import RayRecord

SMALL = RayConfig(num_cpus=1, object_store_memory_bytes=100_000_000, resources={"replay": 2.0})


@pytest.fixture(scope="module")
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_head_is_started_apart_and_stopped_whole() -> None:
    record = start_head(SMALL)
    try:
        host, port = record.address.split(":")
        assert accepts(host, int(port))
        assert is_running(record)
        keeper = psutil.Process(record.pid)
        family = [keeper, *keeper.children(recursive=True)]
        assert len(family) > 2
        # A signal from the terminal must not reach it.
        assert os.getsid(record.pid) != os.getsid(0)
        assert Path(record.temp_dir).is_dir()
        assert not is_running(dataclasses.replace(record, created_s=record.created_s - 5))
        stop_head(dataclasses.replace(record, created_s=record.created_s - 5), keep_files=True)
        assert is_running(record)
    finally:
        stop_head(record)
    assert not is_running(record)
    assert not accepts(host, int(port))
    assert not [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert not Path(record.temp_dir).exists()
    stop_head(record)


def test_a_port_that_is_taken_is_refused(taken_port: int) -> None:
    with pytest.raises(DeployError, match=rf"^ray\.port \({taken_port}\) must be free on {own_ip()}; got one that"):
        start_head(dataclasses.replace(SMALL, port=taken_port))


def test_a_ray_that_does_not_start_shows_why() -> None:
    broken = dataclasses.replace(SMALL, object_store_memory_bytes=1)
    with pytest.raises(DeployError, match=r"^Ray \(port \d+\) must start on .*; got: ValueError: .*1 bytes") as caught:
        start_head(broken)
    log = Path(re.findall(r"\(log '(.*head-\d+\.log)'\)$", str(caught.value))[0])
    assert log.read_text(encoding="utf-8")
    shutil.rmtree(log.parent)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DeployError, match=r"^Ray \('.*below'\) must be startable there; got Not a directory"):
        start_head(dataclasses.replace(SMALL, temp_dir=str(tmp_path / "file" / "below")))


def test_a_process_that_ended_long_ago_is_not_running() -> None:
    assert not is_running(RayRecord("h:1", 2**22 + 1, time.time(), "/nowhere", False))
    assert not is_running(RayRecord("h:1", os.getpid(), 0.0, "/nowhere", False))
