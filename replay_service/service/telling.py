"""What a reply to a sample says beside its records: the words of sources that the client has not met, and which transforms are left to it.

A client says how much of the service's table of sources it knows, and gets what came since: every source travels to it once. The three
integers of the request and the four of the reply are

    request     batch size, whether info is wanted, token of the table, sources known of it
    reply       transforms that are left to the client, token of the table, sources known of it now
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from replay_service.sources import SOURCES, SOURCES_KEY, number_keys, words_leaf
from replay_service.specs import Key, Spec
from replay_service.wire.message import Message

__all__ = ["Told", "left_to_clients", "reads_info_at_clients"]


def left_to_clients(buffer: Any) -> int:
    """How many transforms of a hosted buffer run at its clients."""
    return int(getattr(getattr(buffer, "transform", None), "left", 0))


def reads_info_at_clients(buffer: Any) -> bool:
    """Whether one of these wants to see what is said of a sample, which must then travel with it."""
    return left_to_clients(buffer) > 0 and bool(buffer.transform.for_clients().reads_info)


@dataclass(frozen=True, slots=True)
class Told:
    """What a client knows, and what is left to it.

    Attributes:
        token, known: the table of sources of which the client knows the first `known`.
        left: number of transforms that the client runs.
    """

    token: int = 0
    known: int = 0
    left: int = 0

    @classmethod
    def by(cls, request: Message, buffer: Any) -> Told:
        """What the client said in a request for a sample from `buffer`."""
        return cls(request.argument(2), request.argument(3), left_to_clients(buffer))

    def news(self, spec: Spec) -> tuple[list[tuple[Key, Tensor]], tuple[int, ...]]:
        """Leaves and arguments of a reply with records of that spec, which are in the storage already."""
        known = self.known if self.token == SOURCES.token and 0 <= self.known <= len(SOURCES) else 0
        if not number_keys(spec):
            return [], (self.left, SOURCES.token, known)
        words = SOURCES.since(known)
        return [(SOURCES_KEY, words_leaf(words))], (self.left, SOURCES.token, known + len(words))
