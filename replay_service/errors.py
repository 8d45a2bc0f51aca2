"""Every error the library raises on its own account, in one tree.

    ReplayError
    ├── LayoutError              (ValueError)       rows do not fit the stored layout
    │   └── MissingFlagError     (AttributeError)   a step does not say whether its episode ends
    ├── PriorityError            (ValueError)       priorities that no distribution can be made of
    ├── CheckpointError          (ValueError)       no checkpoint that can be loaded, or no place for one
    ├── EmptyBufferError         (RuntimeError)     nothing to sample
    │   └── NoStepsError         (ValueError, KeyError, AttributeError)  an episodic buffer has no step to draw
    ├── TransportUnavailableError(RuntimeError)     what was asked for cannot go that way
    ├── ReplayTimeoutError       (TimeoutError)     the call's time is over; the handle still works
    ├── ServiceUnavailableError  (ConnectionError)  the service is dead or cannot be reached
    └── ClosedError              (RuntimeError)     this handle, buffer or channel was closed

Catch at the level you need. The first five say that the caller broke a rule, the others that something out there did.
Plain mistakes stay what Python users expect: `TypeError`, `ValueError`, `IndexError`, `KeyError`.
"""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "ClosedError",
    "EmptyBufferError",
    "LayoutError",
    "MissingFlagError",
    "NoStepsError",
    "PriorityError",
    "ReplayError",
    "ReplayTimeoutError",
    "ServiceUnavailableError",
    "TransportUnavailableError",
    "key_name",
]


class ReplayError(Exception):
    """Base of every error of this library."""


class LayoutError(ReplayError, ValueError):
    """Rows do not fit the stored layout: a key, dtype or shape differs. Nothing was written.

    Attributes:
        not_dense: the name of what is no dense tensor, and so can be kept and sent as an object only; empty if the rows are wrong in
            another way.
    """

    not_dense: str = ""


class MissingFlagError(LayoutError, AttributeError):
    """A step does not say whether its episode ends; also the AttributeError that code for episodic buffers has long caught."""


class PriorityError(ReplayError, ValueError):
    """Priorities are NaN, infinite or negative, or sum to zero. Nothing was updated."""


class CheckpointError(ReplayError, ValueError):
    """What lies at a path is no checkpoint that can be loaded, or may not make room for one. Nothing was loaded, or written."""


class EmptyBufferError(ReplayError, RuntimeError):
    """The buffer holds no row that could be sampled."""


class NoStepsError(EmptyBufferError, ValueError, KeyError, AttributeError):
    """An episodic buffer has no step, or none that may be drawn.

    Code for such buffers has long caught a ValueError where it draws, a KeyError where it reads, and an AttributeError where it asks for
    what was never stored: it is each of them, too.
    """

    def __str__(self) -> str:
        return Exception.__str__(self)  # KeyError's would put quotation marks around it


class TransportUnavailableError(ReplayError, RuntimeError):
    """The transport asked for does not exist here or cannot carry this data. Nothing was sent."""


class ReplayTimeoutError(ReplayError, TimeoutError):
    """No answer within the call's timeout. The handle still works."""


class ServiceUnavailableError(ReplayError, ConnectionError):
    """The service is dead or cannot be reached."""


class ClosedError(ReplayError, RuntimeError):
    """This handle, buffer or channel was closed before the call."""


def key_name(key: str | tuple[str, ...]) -> str:
    """Name of a nested key as messages show it: `("next", "reward")` becomes `next.reward`."""
    return key if isinstance(key, str) else ".".join(str(part) for part in key)
