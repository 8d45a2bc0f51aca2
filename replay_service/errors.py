"""Every error the library raises on its own account, in one tree.

    ReplayError
    ├── LayoutError              (ValueError)       rows do not fit the stored layout
    ├── PriorityError            (ValueError)       priorities that no distribution can be made of
    ├── CheckpointError          (ValueError)       no checkpoint that can be loaded, or no place for one
    ├── EmptyBufferError         (RuntimeError)     nothing to sample
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


class PriorityError(ReplayError, ValueError):
    """Priorities are NaN, infinite or negative, or sum to zero. Nothing was updated."""


class CheckpointError(ReplayError, ValueError):
    """What lies at a path is no checkpoint that can be loaded, or may not make room for one. Nothing was loaded, or written."""


class EmptyBufferError(ReplayError, RuntimeError):
    """The buffer holds no row that could be sampled."""


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
