"""Errors on the wire: a code and a text, never a pickled exception. The other end raises the same class with the same words."""

from __future__ import annotations

from replay_service.errors import (
    CheckpointError,
    ClosedError,
    EmptyBufferError,
    LayoutError,
    MissingFlagError,
    NoStepsError,
    PriorityError,
    ReplayError,
    ReplayTimeoutError,
    ServiceUnavailableError,
    TransportUnavailableError,
)
from replay_service.wire.packing import ProtocolError, UnknownLayoutError

__all__ = ["NOT_DENSE", "UNKNOWN_LAYOUT", "code_of", "error_from", "words_of"]

UNKNOWN_LAYOUT = 1
NOT_DENSE = 2
"""The reply is made of objects and waits to be fetched over Ray objects."""

CLASSES: dict[int, type[Exception]] = {
    UNKNOWN_LAYOUT: UnknownLayoutError,
    NOT_DENSE: TransportUnavailableError,
    10: ReplayError,
    11: LayoutError,
    12: PriorityError,
    13: EmptyBufferError,
    14: TransportUnavailableError,
    15: ReplayTimeoutError,
    16: ServiceUnavailableError,
    17: ClosedError,
    18: ProtocolError,
    19: CheckpointError,
    20: NoStepsError,
    21: MissingFlagError,
    30: TypeError,
    31: ValueError,
    32: IndexError,
    33: KeyError,
    34: RuntimeError,
    35: NotImplementedError,
    36: AttributeError,
    37: MemoryError,
    38: OSError,
    39: FileNotFoundError,
}
CODES = {kind: code for code, kind in CLASSES.items() if code != NOT_DENSE}


def code_of(error: BaseException) -> int:
    """The code of the nearest class of `error` that the wire knows; that of `RuntimeError` for any other."""
    return next((CODES[kind] for kind in type(error).__mro__ if kind in CODES), CODES[RuntimeError])


def words_of(error: BaseException) -> str:
    """The text that travels: the message, with the class in front if the code cannot tell it."""
    words = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return words if type(error) in CODES else f"{type(error).__name__}: {words}"


def error_from(code: int, words: str) -> Exception:
    """The error that was sent as code and text."""
    return CLASSES.get(code, RuntimeError)(words)
