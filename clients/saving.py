"""Checkpoints of a hosted buffer, which the service writes and reads on its own node."""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch

from replay_service.arguments import positive_seconds
from replay_service.errors import ReplayTimeoutError
from replay_service.records import SaveReceipt
from replay_service.wire.message import TEXT, Message, static_text, text_of
from replay_service.wire.verbs import Verb

__all__ = ["Saving", "checkpoint_request"]

SAVE_TIMEOUT_S = 600.0
FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.2


class Saving(ABC):
    """The calls of a handle, of either kind, that save and load."""

    @abstractmethod
    def _call(self, request: Message, timeout: float | None) -> Message:
        """The reply to a request."""

    @abstractmethod
    def _timeout_of(self, timeout: float | None) -> float:
        """How long a call may take, in seconds; None: as long as the service says."""

    def dumps(self, path: str | os.PathLike[str], *, timeout: float | None = None) -> SaveReceipt:
        """Lets the service save its buffer, on its own node; as `dumps` of a local one. Other calls go on meanwhile.

        Args:
            path: on the service's node; one that is not absolute is taken from this process's folder.
            timeout: seconds to wait for the whole save; None: ten minutes.

        Raises:
            CheckpointError, OSError: as for a local buffer.
            ReplayTimeoutError: the save takes longer; it goes on.
        """
        return SaveReceipt(**self._done(Verb.DUMPS, path, timeout))

    def loads(self, path: str | os.PathLike[str], *, timeout: float | None = None) -> None:
        """Lets the service load a checkpoint that lies on its node; as `loads` of a local one. `path` and `timeout` as for `dumps`.

        Raises:
            CheckpointError, LayoutError, OSError: as for a local buffer. Nothing was loaded.
            ReplayTimeoutError: the load takes longer; it goes on.
        """
        self._done(Verb.LOADS, path, timeout)

    def _done(self, verb: Verb, path: str | os.PathLike[str], timeout: float | None) -> Any:
        limit = positive_seconds(timeout, SAVE_TIMEOUT_S)
        deadline = time.monotonic() + limit
        pause = FIRST_PAUSE_S
        answer = self._told(verb, {"path": os.path.abspath(os.fspath(path))}, deadline)
        while "receipt" not in answer:
            if time.monotonic() + pause > deadline:
                raise ReplayTimeoutError(
                    f"timeout ({limit} s) must cover {verb.name.lower()} of {path}; it goes on in the service"
                )
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
            answer = self._told(verb, {"ticket": answer["ticket"]}, deadline)
        return answer["receipt"]

    def _told(self, verb: Verb, asked: dict[str, Any], deadline: float) -> dict[str, Any]:
        # Not longer than any other call: the service answers at once, whatever the save takes.
        left_s = min(max(deadline - time.monotonic(), FIRST_PAUSE_S), self._timeout_of(None))
        told: dict[str, Any] = json.loads(text_of(self._call(checkpoint_request(verb, asked), left_s)))
        return told


def checkpoint_request(verb: Verb, asked: dict[str, Any]) -> Message:
    """The request that begins a save or load (`{"path": …}`), or asks how it goes (`{"ticket": …}`)."""
    data = torch.from_numpy(np.frombuffer(static_text(asked).encode(), np.uint8).copy())
    return Message(verb, TEXT, [data], items=data.numel())
