"""The closed list of what a client can ask for. Handle, dispatch and every channel carry all of it."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Verb"]


class Verb(IntEnum):
    """One request kind; the number is what stands in a header and never changes its meaning."""

    EXTEND = 1
    ADD = 2
    SAMPLE = 3
    UPDATE_PRIORITY = 4
    UPDATE_IF_PRESENT = 5
    GET = 6
    SET = 7
    READ_ALL = 8
    WRITE_ALL = 9
    QUERY = 10
    LENGTH = 11
    WRITE_COUNT = 12
    STATS = 13
    CLOSE = 14
