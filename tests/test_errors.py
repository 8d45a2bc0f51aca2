"""The error tree: what is caught by which name."""

from __future__ import annotations

import inspect
import pickle

import pytest

from replay_service import errors
from replay_service.errors import ReplayError, key_name

BASES: dict[str, type[Exception]] = {
    "LayoutError": ValueError,
    "MissingFlagError": AttributeError,
    "PriorityError": ValueError,
    "CheckpointError": ValueError,
    "EmptyBufferError": RuntimeError,
    "NoStepsError": KeyError,
    "TransportUnavailableError": RuntimeError,
    "ReplayTimeoutError": TimeoutError,
    "ServiceUnavailableError": ConnectionError,
    "ClosedError": RuntimeError,
}


def test_every_error_is_in_the_tree() -> None:
    found = {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, Exception) and kind is not ReplayError
    }
    assert set(found) == set(BASES)
    assert set(errors.__all__) == {*BASES, "ReplayError", "key_name"}


@pytest.mark.parametrize(("name", "base"), BASES.items())
def test_errors_are_ours_and_pythons(name: str, base: type[Exception]) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, ReplayError)
    assert issubclass(kind, base)
    again = pickle.loads(pickle.dumps(kind("key (a) must be b")))
    assert (type(again), str(again)) == (kind, "key (a) must be b")


def test_errors_are_drawn_as_they_are() -> None:
    for name, base in BASES.items():
        assert f"{name} " in errors.__doc__ or f"{name}(" in errors.__doc__  # type: ignore[operator]
        assert base.__name__ in errors.__doc__  # type: ignore[operator]


@pytest.mark.parametrize(
    ("key", "name"), [("reward", "reward"), (("next", "reward"), "next.reward"), (("a",), "a"), ((), "")]
)
def test_nested_keys_are_named_with_dots(key: str | tuple[str, ...], name: str) -> None:
    assert key_name(key) == name
