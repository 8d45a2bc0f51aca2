"""Errors that travel: the same class with the same words at the other end."""

from __future__ import annotations

import inspect

import pytest

from replay_service import errors
from replay_service.errors import ReplayError, TransportUnavailableError
from replay_service.wire.failures import CLASSES, NOT_DENSE, code_of, error_from, words_of
from replay_service.wire.packing import ProtocolError, UnknownLayoutError

OURS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, ReplayError)]
THEIRS = [
    TypeError,
    ValueError,
    IndexError,
    KeyError,
    RuntimeError,
    AttributeError,
    MemoryError,
    OSError,
    FileNotFoundError,
]


def sent(error: Exception) -> Exception:
    return error_from(code_of(error), words_of(error))


@pytest.mark.parametrize("kind", [*OURS, *THEIRS, ProtocolError, UnknownLayoutError, NotImplementedError])
def test_class_and_words_survive(kind: type[Exception]) -> None:
    found = sent(kind("next.reward must be größer"))
    assert type(found) is kind
    assert found.args == ("next.reward must be größer",)


def test_a_class_the_wire_does_not_know_becomes_its_nearest_ancestor_and_is_named() -> None:
    class StrangeError(errors.LayoutError):
        pass

    found = sent(StrangeError("words"))
    assert type(found) is errors.LayoutError
    assert str(found) == "StrangeError: words"
    assert type(sent(ZeroDivisionError("by zero"))) is RuntimeError
    assert "ZeroDivisionError" in str(sent(ZeroDivisionError("by zero")))
    assert type(sent(UnicodeDecodeError("utf-8", b"", 0, 1, "reason"))) is ValueError


def test_codes_are_distinct_and_those_of_good_replies_are_not_among_them() -> None:
    assert 0 not in CLASSES
    assert {code_of(kind("x")) for kind in CLASSES.values()} == set(CLASSES) - {NOT_DENSE}


def test_a_code_of_a_later_version_is_an_error_all_the_same() -> None:
    assert type(error_from(999, "words")) is RuntimeError
    assert type(error_from(NOT_DENSE, "words")) is TransportUnavailableError
