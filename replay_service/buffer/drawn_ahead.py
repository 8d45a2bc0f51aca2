"""Batches that threads have drawn ahead, in the order of their draws, and the threads."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from replay_service.buffer.pick import Pick

__all__ = ["Drawn", "DrawnAhead"]

END_TIMEOUT_S = 5.0


class Drawn:
    """A batch whose records are drawn and read; what is made of them comes when it is ready.

    Attributes:
        pick: the draw.
        is_last: whether it was the last of an epoch.
        is_outdated: whether its records were changed in place since they were read.
        term: how often the queue had been cleared when it came in.
    """

    __slots__ = ("_result", "is_last", "is_outdated", "pick", "term")

    def __init__(self, pick: Pick, is_last: bool, is_outdated: bool = False) -> None:
        self.pick = pick
        self.is_last = is_last
        self.is_outdated = is_outdated
        self.term = 0
        self._result: Future[Any] = Future()

    def finish(self, make: Callable[..., Any], *arguments: Any) -> None:
        """Makes the batch; an error is kept for whoever takes it."""
        try:
            self._result.set_result(make(*arguments))
        except BaseException as error:
            self._result.set_exception(error)

    def is_ready(self, timeout: float | None) -> bool:
        """Whether the batch is made, or its error known, within `timeout` seconds."""
        try:
            self._result.exception(timeout)
        except TimeoutError:
            return self._result.done()
        return True

    def result(self) -> Any:
        """The batch, waited for; the error, if making it failed."""
        return self._result.result()


class DrawnAhead:
    """A queue of at most `depth` batches that `depth` threads fill; they draw one after the other and finish side by side.

    An epoch is never drawn beyond: after its last batch was drawn the threads wait until that was taken and another one is asked for.
    The threads hold the owner only while they draw, so that it can be forgotten; then they end.

    Args:
        owner: whose batches they are.
        draw: draws one batch and puts it into the queue, if there is still room; called with the owner, by the threads.
        depth: batches drawn ahead at most.
    """

    def __init__(self, owner: Any, draw: Callable[[Any], None], depth: int) -> None:
        self.depth = depth
        self.process = os.getpid()
        self.size: int | None = None
        self._queue: deque[Drawn] = deque()
        self._changed = threading.Condition()
        self._term = 0
        self._waits = True
        self._was_last: bool | None = None
        self._crew = 0  # of which generation threads may run; those of an earlier one end
        self._threads: list[threading.Thread] = []
        self._owner = weakref.ref(owner)
        self._draw = draw
        weakref.finalize(owner, self.stop)

    # -- for those who take batches ---------------------------------------------------------------------------------

    def take(self) -> Drawn | None:
        """The oldest batch, or None; the threads go on if the epoch does."""
        with self._changed:
            if not self._queue:
                return None
            drawn = self._queue.popleft()
            self.went(drawn.is_last)
            return drawn

    def went(self, is_last: bool) -> None:
        """Is told of a batch that was taken, or drawn by its taker."""
        with self._changed:
            self._was_last = is_last
            self._waits = is_last
            if not self._threads and not is_last:
                self._start()
            self._changed.notify_all()

    def give_back(self, drawn: Drawn) -> None:
        """Puts a batch that was taken, but not waited for to its end, in front again, unless the queue was cleared meanwhile."""
        with self._changed:
            if drawn.term == self._term:
                self._queue.appendleft(drawn)

    @property
    def was_last(self) -> bool | None:
        """Whether the batch that was taken last was the last of an epoch; None if none was."""
        return self._was_last

    # -- for the threads --------------------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """Whether another batch may be drawn."""
        with self._changed:
            ended = bool(self._queue) and self._queue[-1].is_last
            return not self._waits and not ended and len(self._queue) < self.depth

    def append(self, drawn: Drawn) -> None:
        """Adds a batch; the caller holds the buffer's lock since it drew, so that the order is that of the draws."""
        with self._changed:
            drawn.term = self._term
            self._queue.append(drawn)

    def wait(self) -> None:
        """Lets the threads wait until a batch is taken: a draw has failed, as it may for whoever asks next."""
        with self._changed:
            self._waits = True

    # -- when something else happens --------------------------------------------------------------------------------

    def outdate(self) -> None:
        """Records were changed in place: those in the queue are read again when they are taken."""
        with self._changed:
            for drawn in self._queue:
                drawn.is_outdated = True

    def clear(self) -> None:
        """Forgets all batches: there are other records now, or another sampler."""
        with self._changed:
            self._queue.clear()
            self._term += 1
            self._waits, self._was_last = True, None

    def waiting(self) -> list[Drawn]:
        """The batches in the queue, the oldest first."""
        with self._changed:
            return list(self._queue)

    def __len__(self) -> int:
        return len(self._queue)

    def stop(self) -> None:
        """Ends the threads; the queue stays, and taking from it starts new ones."""
        with self._changed:
            self._crew += 1
            threads, self._threads = self._threads, []
            self._changed.notify_all()
        for thread in threads:
            if thread is not threading.current_thread() and self.process == os.getpid():
                thread.join(END_TIMEOUT_S)

    # -- inner ------------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._threads = [
            threading.Thread(target=self._run, args=(self._crew,), name=f"replay-prefetch-{place}", daemon=True)
            for place in range(self.depth)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, crew: int) -> None:
        while self._wait_for_room(crew):
            owner = self._owner()
            if owner is None:
                return
            self._draw(owner)
            del owner

    def _wait_for_room(self, crew: int) -> bool:
        """True when there is room; False when the thread is to end."""
        with self._changed:
            self._changed.wait_for(lambda: crew != self._crew or self.has_room())
            return crew == self._crew
