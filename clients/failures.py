"""Ray's errors about the actors of the loop, as errors of ours that say who failed and why, in one line."""

from __future__ import annotations

from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from replay_service.errors import ReplayError, ReplayTimeoutError, ServiceUnavailableError

__all__ = ["failure_of"]


def failure_of(who: str, error: RayError, timeout_s: float) -> ReplayError:
    """What `error`, from a call of the actor `who`, means to the caller.

    An error that the actor's own code raised keeps its class where that is one of ours; a silent actor is a
    `ReplayTimeoutError`, a dead one a `ServiceUnavailableError`.
    """
    if isinstance(error, GetTimeoutError):
        return ReplayTimeoutError(f"timeout ({timeout_s} s) must cover the call; {who} has not answered")
    if isinstance(error, RayTaskError):
        cause = error.cause if isinstance(error.cause, Exception) else error
        if isinstance(cause, ReplayError):
            return type(cause)(f"{who} failed: {cause}")
        return ReplayError(f"{who} failed: {type(cause).__name__}: {cause}")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    # Where the constructor raised, Ray shows its traceback: the last line says what happened.
    reason = lines[-1] if "creation task" in lines[0] else lines[0]
    return ServiceUnavailableError(f"{who} must be alive and reachable; {reason}")
