"""One lock over several storages."""

from __future__ import annotations

import pickle
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from replay_service import ListStorage
from replay_service.buffer.ensemble.joint_lock import JointLock


class _Noted:
    """Stands for a storage; notes when its lock is taken and freed."""

    def __init__(self, name: str, notes: list[str], fails: bool = False) -> None:
        self.name, self.notes, self.fails = name, notes, fails

    @property
    def lock(self) -> AbstractContextManager[Any]:
        return self  # type: ignore[return-value]

    def __enter__(self) -> None:
        if self.fails:
            raise OSError("cannot be locked")
        self.notes.append(f"+{self.name}")

    def __exit__(self, *exception: object) -> None:
        self.notes.append(f"-{self.name}")


def test_the_order_is_one_whoever_asks() -> None:
    notes: list[str] = []
    a, b = _Noted("a", notes), _Noted("b", notes)
    for parts in ((a, b), (b, a)):
        with JointLock(parts):
            pass
    assert notes[:4] == notes[4:]
    assert notes[0][1] == notes[3][1]


def test_a_lock_that_cannot_be_taken_frees_the_others() -> None:
    notes: list[str] = []
    parts = sorted([_Noted("a", notes), _Noted("b", notes)], key=id)
    parts[1].fails = True
    with pytest.raises(OSError, match="cannot be locked"), JointLock(parts):
        pass
    assert notes == [f"+{parts[0].name}", f"-{parts[0].name}"]


def test_two_ensembles_never_wait_for_each_other() -> None:
    storages = [ListStorage(1), ListStorage(1)]
    counts = [0, 0]

    def work(place: int, lock: JointLock) -> None:
        for _ in range(500):
            with lock, lock:
                counts[place] += 1

    threads = [
        threading.Thread(target=work, args=(place, JointLock(order)), daemon=True)
        for place, order in enumerate([storages, storages[::-1]])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
    assert counts == [500, 500]


def test_a_copy_locks_the_copies() -> None:
    storages = [ListStorage(1), ListStorage(1)]
    lock, copies = pickle.loads(pickle.dumps((JointLock(storages), storages)))
    free: list[bool] = []

    def look() -> None:
        taken = copies[0].lock.acquire(blocking=False)
        free.append(taken)
        if taken:
            copies[0].lock.release()

    for guard in (lock, nullcontext()):
        with guard:
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()
    assert free == [False, True]
