"""Saves and loads that a client asks for: they run on a thread of their own, so that all other calls go on, and the client asks again.

A request says `{"path": …}` to begin, and is answered `{"ticket": …}`; further ones say `{"ticket": …}` until the answer is
`{"receipt": …}`, or the error that the save or load ended with.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch

from replay_service.buffer.local_service import finished
from replay_service.wire.message import TEXT, Message, text_of

__all__ = ["Saving"]

MOST_TICKETS = 64
PATIENCE_S = 0.002
"""How long the first answer waits for what is small: then no second question is needed."""


class Saving:
    """The checkpoints of one hosted buffer, of either kind.

    Args:
        buffer: the buffer, with `dumps` and `loads`.
    """

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer
        self._lock = threading.Lock()
        self._tickets: OrderedDict[str, Future[Any]] = OrderedDict()

    def dumps(self, request: Message) -> Message:
        """Begins a save, or tells how it goes."""
        return self._answer(request, self._buffer.dumps)

    def loads(self, request: Message) -> Message:
        """Begins a load, or tells how it goes."""
        return self._answer(request, self._buffer.loads)

    def _answer(self, request: Message, call: Callable[[str], Any]) -> Message:
        asked = json.loads(text_of(request))
        ticket = asked.get("ticket")
        if ticket is None:
            ticket, result = self._begin(call, str(asked["path"]))
        else:
            with self._lock:
                found = self._tickets.get(ticket)
            if found is None:
                raise ValueError(f"ticket ({ticket}) must be that of one of the newest {MOST_TICKETS} saves and loads")
            result = found
        try:
            receipt = result.result(PATIENCE_S)
        except TimeoutError:
            if not result.done():
                return _text(request, {"ticket": ticket})
            receipt = result.result()
        told = None if receipt is None else dataclasses.asdict(receipt)
        return _text(request, {"ticket": ticket, "receipt": told})

    def _begin(self, call: Callable[[str], Any], path: str) -> tuple[str, Future[Any]]:
        ticket, result = uuid.uuid4().hex, Future[Any]()
        with self._lock:
            self._tickets[ticket] = result
            while len(self._tickets) > MOST_TICKETS:
                self._tickets.popitem(last=False)

        def run() -> None:
            outcome = finished(call, path)
            error = outcome.exception()
            if error is None:
                result.set_result(outcome.result())
            else:
                result.set_exception(error)

        threading.Thread(target=run, name="replay-checkpoint", daemon=True).start()
        return ticket, result


def _text(request: Message, told: dict[str, Any]) -> Message:
    data = torch.from_numpy(np.frombuffer(json.dumps(told).encode(), np.uint8).copy())
    return Message(request.verb, TEXT, [data], items=data.numel())
