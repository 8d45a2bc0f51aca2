"""Kills a child in the middle of its saves."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["kill_one"]

LONGEST_S = 0.03


def kill_one(save_for_ever: Callable[[Path, int], None], path: Path) -> tuple[list[int], list[int]]:
    """Lets a child, a fork of this process, save to `path`, and kills it; the write counts that it began and ended to save.

    `save_for_ever(path, told)` writes a line `saving COUNT` to the file descriptor `told` before each save, and `saved COUNT` after it.
    """
    heard, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            save_for_ever(path, told)
        finally:
            os._exit(1)
    os.close(told)
    with os.fdopen(heard) as lines:
        said = [lines.readline() for _ in range(random.randrange(1, 6))]
        while not said[-1].startswith("saving"):
            said.append(lines.readline())
        time.sleep(random.random() * LONGEST_S)  # somewhere within the save, or behind it
        os.kill(child, signal.SIGKILL)
        said += lines.readlines()
    os.waitpid(child, 0)
    counts = {word: [int(line.split()[1]) for line in said if line.startswith(word)] for word in ("saving", "saved")}
    return counts["saving"], counts["saved"]
