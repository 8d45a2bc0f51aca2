from __future__ import annotations

import pytest
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError, RayTaskError

from clients.failures import failure_of
from replay_service.errors import EmptyBufferError, ReplayError, ReplayTimeoutError, ServiceUnavailableError


def raised(cause: Exception) -> RayTaskError:
    return RayTaskError("collect", "Traceback: many lines", cause)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (GetTimeoutError("late"), ReplayTimeoutError, "timeout (3.0 s) must cover the call; it has not answered"),
        (raised(OSError("no disk")), ReplayError, "it failed: OSError: no disk"),
        (raised(EmptyBufferError("nothing")), EmptyBufferError, "it failed: nothing"),
        (ActorDiedError(), ServiceUnavailableError, "it must be alive and reachable; The actor died"),
        (RayError("first\nsecond"), ServiceUnavailableError, "it must be alive and reachable; first"),
        (
            RayError("The actor died because of an error raised in its creation task\n File 3\nValueError: wrong\n"),
            ServiceUnavailableError,
            "it must be alive and reachable; ValueError: wrong",
        ),
        (RayError(""), ServiceUnavailableError, "it must be alive and reachable; RayError"),
    ],
)
def test_failures(error: RayError, kind: type[ReplayError], words: str) -> None:
    failure = failure_of("it", error, 3.0)
    assert type(failure) is kind
    assert str(failure).startswith(words)
    assert "\n" not in str(failure)
