"""A program that kills children in the middle of their saves, and looks at what they left: `killing PATH TIMES`.

A child is a fork of this process, which has imported everything already; it begins with the newest checkpoint, adds and saves.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import numpy as np
import torch

from replay_service.episodic import ReplayBuffer
from tests.episodic.steps import rows
from tests.killing import kill_one

SIZE, WIDTH = 2048, 512


def save_for_ever(path: Path, told: int) -> None:
    """Adds and saves, and says so before and after."""
    buffer = ReplayBuffer(SIZE)
    if path.exists():
        buffer.loads(path)
    while True:
        numbers = np.arange(buffer.write_count, buffer.write_count + random.choice([1, 100, 600]))
        wide = np.repeat(numbers[:, None], WIDTH, 1)
        buffer.add(rows(numbers.tolist(), obs=wide, obs_next=wide + 1), np.zeros(numbers.size, np.int64))
        os.write(told, f"saving {buffer.write_count}\n".encode())
        buffer.dumps(path)
        os.write(told, f"saved {buffer.write_count}\n".encode())


def main(path: Path, times: int) -> None:
    """Kills `times` children, one after the other; AssertionError for a checkpoint that is not what was saved."""
    torch.set_num_threads(1)  # a fork has no other threads
    ReplayBuffer(1).add(rows([0]), [0])  # what the first step has to load, no child has to
    random.seed(7)
    newest = kills = 0
    while kills < times:
        begun, done = kill_one(save_for_ever, path)
        kills += 1
        if not path.exists():
            assert not done, "a save that ended must be there"
            continue
        buffer = ReplayBuffer(SIZE)
        buffer.loads(path)
        count = buffer.write_count
        assert count in {newest, *begun}, (count, newest, begun)
        assert count >= max([newest, *done]), (count, newest, done)
        held = buffer[:]
        assert held.act.tolist() == list(range(count - len(buffer), count))
        assert bool((held.obs == held.act[:, None]).all()), "a step is torn"
        newest = count
    print(f"{newest} steps after {kills} kills")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
