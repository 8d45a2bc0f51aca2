"""A program that kills children in the middle of their saves, and looks at what they left: `killing PATH TIMES`.

A child is a fork of this process, which has imported everything already; it begins with the newest checkpoint, writes and saves.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import torch

from tests.buffer.persist.buffers import make, rows
from tests.killing import kill_one

CAPACITY = 1024


def save_for_ever(path: Path, told: int) -> None:
    """Writes and saves, and says so before and after."""
    buffer = make(capacity=CAPACITY)
    if path.exists():
        buffer.loads(path)
    while True:
        buffer.extend(rows(random.choice([1, 100, 600]), stamp=buffer.write_count))
        os.write(told, f"saving {buffer.write_count}\n".encode())
        buffer.dumps(path)
        os.write(told, f"saved {buffer.write_count}\n".encode())


def main(path: Path, times: int) -> None:
    """Kills `times` children, one after the other; AssertionError for a checkpoint that is not what was saved."""
    torch.set_num_threads(1)  # a fork has no other threads
    random.seed(11)
    newest = kills = 0
    while kills < times:
        begun, done = kill_one(save_for_ever, path)
        kills += 1
        if not path.exists():
            assert not done, "a save that ended must be there"
            continue
        buffer = make(capacity=CAPACITY)
        buffer.loads(path)
        count = buffer.write_count
        assert count in {newest, *begun}, (count, newest, begun)
        assert count >= max([newest, *done]), (count, newest, done)
        held = buffer[:]
        assert len(buffer) == min(count, CAPACITY)
        assert held["number"].sort().values.tolist() == list(range(count - len(buffer), count))
        assert bool((held["observation"] == held["number"][:, None]).all()), "a record is torn"
        newest = count
    print(f"{newest} records after {kills} kills")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
