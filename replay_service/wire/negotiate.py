"""Which way an operation takes: a pure function of what the client has to send and what the service supports."""

from __future__ import annotations

from dataclasses import dataclass

from replay_service.errors import TransportUnavailableError

__all__ = ["DISTRIBUTED", "RAY", "TRANSPORTS", "Offer", "Route", "Support", "negotiate"]

RAY = "ray"
DISTRIBUTED = "distributed"
TRANSPORTS = ("auto", RAY, DISTRIBUTED)


@dataclass(frozen=True, slots=True)
class Offer:
    """What a client wants to send in one kind of operation.

    Attributes:
        transport: the client's setting, one of `TRANSPORTS`.
        obstacle: what is no dense tensor (`"info.name (str)"`), or empty if all of it is.
        reply_obstacle: why the reply cannot be dense tensors, as the service said, or empty.
    """

    transport: str
    obstacle: str = ""
    reply_obstacle: str = ""


@dataclass(frozen=True, slots=True)
class Support:
    """What a service offers.

    Attributes:
        transport: the service's own setting.
        backends: payload backends of its tensor channel; empty if it has none.
        missing: why it has none.
    """

    transport: str = "auto"
    backends: tuple[str, ...] = ()
    missing: str = "the service opened no tensor channel"


@dataclass(frozen=True, slots=True)
class Route:
    """The way an operation takes, and why."""

    kind: str
    why: str


def negotiate(offer: Offer, support: Support) -> Route:
    """The route of one kind of operation.

    Raises:
        ValueError: a transport that does not exist.
        TransportUnavailableError: the transport asked for cannot carry this; nothing was sent.
    """
    for name, value in (("transport", offer.transport), ("service transport", support.transport)):
        if value not in TRANSPORTS:
            raise ValueError(f"{name} ({value!r}) must be one of {list(TRANSPORTS)}")
    wanted = offer.transport if offer.transport != "auto" else support.transport
    obstacle = offer.obstacle or offer.reply_obstacle
    if wanted == RAY:
        return Route(RAY, "transport is 'ray'")
    if wanted == DISTRIBUTED:
        if obstacle:
            raise TransportUnavailableError(
                f"{obstacle} must be a dense tensor to travel with transport='distributed'; use transport='auto' or 'ray'"
            )
        if not support.backends:
            raise TransportUnavailableError(
                f"transport ('distributed') must be offered by the service; {support.missing}: use transport='auto' or 'ray'"
            )
        return Route(DISTRIBUTED, "transport is 'distributed'")
    if obstacle:
        return Route(RAY, f"{obstacle} is no dense tensor")
    if not support.backends:
        return Route(RAY, support.missing)
    return Route(DISTRIBUTED, "all of it is dense tensors")
