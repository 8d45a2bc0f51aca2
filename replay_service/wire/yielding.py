"""Threads that do not take the processor from whoever wakes them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

__all__ = ["processors", "yielding_threads"]


@contextlib.contextmanager
def yielding_threads() -> Iterator[None]:
    """Threads that are started within wait for a processor to be free, or for their turn, instead of interrupting another thread.

    gloo's own thread of a pair is meant: it wakes the moment that the other end writes, and where processors are few it then takes the
    writer's, who still holds the lock of its own pair. The answer finds that lock held, and the thread that is to receive it asks for it in
    a loop for all of its time slice. With 8 clients on 2 cores a quarter of the service's time went that way. A client that has the
    processors for itself is better served the other way: its own large samples took a tenth longer so.

    Under Linux a thread has the policy of the one that starts it; SCHED_BATCH needs no privilege. Elsewhere, or where it is not allowed,
    nothing changes.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(AttributeError, OSError):
            if os.sched_getscheduler(0) == os.SCHED_OTHER:  # of this thread alone; what somebody chose on purpose stays
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
                stack.callback(os.sched_setscheduler, 0, os.SCHED_OTHER, os.sched_param(0))
        yield


def processors() -> int:
    """How many processors this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1
