"""Joining the Ray that a service lives in."""

from __future__ import annotations

import logging
import socket
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from replay_service.errors import ReplayTimeoutError, ServiceUnavailableError
from replay_service.wire.ray_objects import require_ray

__all__ = ["find_service", "join_ray"]

PROBE_TIMEOUT_S = 5.0


def join_ray(address: str | None) -> None:
    """Joins the Ray at `address` (None: the one on this machine), unless this process has joined one.

    Raises:
        ServiceUnavailableError: no Ray can be reached there.
    """
    if ray.is_initialized():
        require_ray(f"Ray ({address or 'auto'})")
        return
    _probe(address)
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.WARNING)
    except (
        ConnectionError,
        RuntimeError,
        TimeoutError,
        SystemExit,
    ) as error:  # Ray leaves a dead address by SystemExit
        raise ServiceUnavailableError(f"Ray ({address or 'auto'}) must be reachable; {error}") from error


def _probe(address: str | None) -> None:
    """Asks a `host:port` for a connection first: Ray itself tries a dead one for more than a minute."""
    host, colon, port = (address or "").rpartition(":")
    if not colon or not port.isdigit() or "/" in host:
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_TIMEOUT_S).close()
    except OSError as error:
        raise ServiceUnavailableError(f"Ray ({address}) must be reachable; {error}") from error


def find_service(name: str, namespace: str, timeout_s: float) -> tuple[Any, dict[str, Any]]:
    """The actor of a running service, and what it says of itself.

    Raises:
        ServiceUnavailableError: this process has joined no Ray, or no service has that name.
        ReplayTimeoutError: there is one, but it does not answer within `timeout_s`.
    """
    if not ray.is_initialized():
        raise ServiceUnavailableError(
            f"this process must be joined to the Ray of {name!r}; call ray.init(address=…) or clients.connect"
        )
    require_ray(name)
    try:
        actor = ray.get_actor(name, namespace=namespace)
        answer: Any = actor.describe.remote()
        known: dict[str, Any] = ray.get(answer, timeout=timeout_s)
    except GetTimeoutError as error:
        raise ReplayTimeoutError(f"timeout ({timeout_s} s) must cover the call; {name} has not answered") from error
    except (ValueError, AttributeError, RayError) as error:  # AttributeError: an actor that is something else
        address: Any = ray.get_runtime_context().gcs_address
        raise ServiceUnavailableError(
            f"name ({name!r}) must be that of a running service in namespace {namespace!r} of the Ray at {address}; "
            "for one in another Ray give its address, which `replay-service up` printed"
        ) from error
    if "failure" in known:
        raise ServiceUnavailableError(f"service ({name}) must have started; {known['failure'][1]}")
    return actor, known
