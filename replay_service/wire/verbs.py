"""The closed list of what a client can ask for. Handle, dispatch and every channel carry all of it."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["DRAWING_VERBS", "OF_BOTH", "RECORD_VERBS", "STEP_VERBS", "Verb"]


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

    ADD_STEPS = 15
    SAMPLE_STEPS = 16
    GET_STEPS = 17
    GET_ENTRY = 18
    SAMPLE_INDICES = 19
    PREVIOUS = 20
    FOLLOWING = 21
    UNFINISHED = 22
    COLUMN = 23
    SET_COLUMN = 24
    HAS_NULL = 25
    EPISODIC_RETURN = 26
    UPDATE_WEIGHT = 27
    GET_WEIGHT = 28
    SET_BETA = 29
    RESET = 30
    END_EPISODES = 31

    DUMPS = 32
    LOADS = 33


OF_BOTH = frozenset({Verb.LENGTH, Verb.WRITE_COUNT, Verb.STATS, Verb.CLOSE, Verb.DUMPS, Verb.LOADS})
"""What every buffer serves."""

STEP_VERBS = frozenset(verb for verb in Verb if Verb.ADD_STEPS <= verb <= Verb.END_EPISODES) | OF_BOTH
"""What an episodic buffer serves."""

RECORD_VERBS = frozenset(Verb) - STEP_VERBS | OF_BOTH
"""What a buffer of records serves."""

DRAWING_VERBS = frozenset({Verb.SAMPLE, Verb.SAMPLE_STEPS})
"""Those whose answer differs from call to call, so that none may be asked twice for one answer."""
