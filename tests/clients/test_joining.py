"""Joining Ray."""

from __future__ import annotations

import socket
import subprocess
import sys

CONNECT = """
import sys
from clients import connect
from replay_service import ServiceUnavailableError
try:
    connect("nobody", address=sys.argv[1])
except ServiceUnavailableError as error:
    print(error)
"""


def test_an_address_where_nobody_listens_is_an_error_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-c", CONNECT, address], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Ray ({address}) must be reachable; ")
