"""Several threads that do their work at the same time, and change places as often as can be."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["run_at_once", "switching_eagerly"]

JOIN_TIMEOUT_S = 60.0


@contextmanager
def switching_eagerly() -> Iterator[None]:
    """Threads change places hundreds of times in one call, so that a missing lock shows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def run_at_once(*work: Callable[[], Any], timeout_s: float = JOIN_TIMEOUT_S) -> None:
    """All of it at once; the first error of any thread is raised here."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(work))

    def guarded(call: Callable[[], Any]) -> None:
        try:
            start.wait(timeout=20)
            call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=timeout_s)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]
