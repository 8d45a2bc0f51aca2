"""Who counts as a client."""

from __future__ import annotations

import os
import subprocess
import sys

from replay_service.service.roster import Roster


def test_clients_count_until_they_say_goodbye() -> None:
    roster = Roster("here")
    for name in ("a", "b", "a"):
        roster.seen(name, "here", os.getpid())
    assert len(roster) == 2
    roster.gone("a")
    roster.gone("a")
    roster.gone("never seen")
    assert len(roster) == 1


def test_a_lease_ends_and_is_renewed() -> None:
    now = 0.0
    roster = Roster("here", lease_s=10.0, clock=lambda: now)
    roster.seen("a", "there", 1)
    roster.seen("b", "there", 2)
    now = 9.0
    roster.seen("a", "there", 1)
    assert len(roster) == 2
    now = 11.0
    assert len(roster) == 1
    now = 20.0
    assert len(roster) == 0


def test_a_dead_process_of_this_host_does_not_count() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    roster = Roster("here")
    roster.seen("near", "here", process.pid)
    roster.seen("far", "there", process.pid)
    assert len(roster) == 2
    process.communicate(b"\n")
    assert len(roster) == 1  # of the one on the other host nothing is known
