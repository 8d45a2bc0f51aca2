"""Processes that hold a handle: plain Python, joined to the Ray of the tests."""

from __future__ import annotations

import base64
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

from clients import ReplayClient
from tests.conftest import RaySession

__all__ = ["Worker"]

PRELUDE = """
import base64, os, pickle, sys, time
import clients  # before Ray: it lets Ray show its token
import ray
ray.init(address=sys.argv[1], namespace=sys.argv[2], log_to_driver=False, logging_level="ERROR")
client = pickle.loads(base64.b64decode(sys.argv[3]))
from tests.rows import assert_rows_are_whole, stamped_rows
"""


class Worker:
    """A process that got a handle through pickle and runs a script with it; `say(word)` in the script leaves a mark that `said` sees."""

    def __init__(self, session: RaySession, client: ReplayClient, script: str) -> None:
        self._marks = Path(tempfile.mkdtemp())
        marking = f"\ndef say(word): open({str(self._marks)!r} + '/' + word, 'w').close()\n"
        handle = base64.b64encode(pickle.dumps(client)).decode()
        self._process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + marking + script, session.address, session.namespace, handle],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def said(self, word: str) -> bool:
        """Whether the script has come so far; an AssertionError if it ended before."""
        if (self._marks / word).exists():
            return True
        assert self._process.poll() is None, self._process.communicate()[1]
        return False

    def printed(self, timeout_s: float) -> str:
        """What the script printed, once it has ended well."""
        out, err = self._process.communicate(timeout=timeout_s)
        assert self._process.returncode == 0, err
        return out.strip()

    def end(self) -> None:
        """Kills it if it still runs."""
        self._process.kill()
        self._process.communicate()
