"""What a service is started with: Ray itself, the actor's options, the transport's."""

from __future__ import annotations

import os
import time
import uuid
from typing import Any

import ray
import torch
from ray.exceptions import RayError

from replay_service.errors import ServiceUnavailableError, TransportUnavailableError
from replay_service.wire.negotiate import TRANSPORTS

__all__ = [
    "DEFAULT_NAMESPACE",
    "DEFAULT_TIMEOUT_S",
    "STOP_TIMEOUT_S",
    "actor_options",
    "check_transport",
    "default_threads",
    "end_actor",
    "ensure_ray",
]

DEFAULT_NAMESPACE = "replay-service"
DEFAULT_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
POLL_EVERY_S = 0.01
BACKENDS = ("gloo", "nccl")


def default_threads() -> int:
    """Threads torch may use in the actor: half of the cores, so that they do not spin beside those of the network."""
    return max(1, (os.cpu_count() or 2) // 2)


def ensure_ray(config: dict[str, Any] | None = None) -> None:
    """Initialises Ray if this process has not joined one.

    Raises:
        ServiceUnavailableError: Ray cannot be started or reached.
    """
    if ray.is_initialized():
        return
    settings: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, **(config or {})}
    if settings.get("address") is not None:
        settings.pop("include_dashboard")
    try:
        ray.init(**settings)
    except (ConnectionError, RuntimeError, TimeoutError) as error:
        raise ServiceUnavailableError(f"Ray must be reachable; {error}") from error


def end_actor(actor: Any) -> None:
    """Kills an actor and waits until it is gone, and its name free again; Ray itself kills in the background."""
    ray.kill(actor)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            ray.get(actor.drained.remote(), timeout=STOP_TIMEOUT_S)
        except RayError:
            return
        time.sleep(POLL_EVERY_S)


def actor_options(
    given: dict[str, Any] | None, name: str | None, namespace: str | None, lifetime: str | None
) -> dict[str, Any]:
    """Ray's actor options, with a name and a namespace in any case."""
    options = {"num_cpus": 1, **(given or {})}
    options["name"] = name or options.get("name") or f"replay-{uuid.uuid4().hex[:12]}"
    options["namespace"] = namespace or options.get("namespace") or DEFAULT_NAMESPACE
    if lifetime is not None:
        options["lifetime"] = lifetime
    return options


def check_transport(transport: str, backend: str, timeout_s: float, unknown: dict[str, Any]) -> None:
    """Refuses a transport, backend, timeout or option that does not exist, with `ValueError`."""
    if transport not in TRANSPORTS:
        raise ValueError(f"transport ({transport!r}) must be one of {list(TRANSPORTS)}")
    if backend not in BACKENDS:
        raise ValueError(f"transport_options.backend ({backend!r}) must be one of {list(BACKENDS)}")
    if backend == "nccl" and not torch.cuda.is_available():
        raise TransportUnavailableError("backend ('nccl') must find a CUDA device; this machine has none: use 'gloo'")
    if not timeout_s > 0:
        raise ValueError(f"timeout ({timeout_s}) must be positive, in seconds")
    if unknown:
        raise ValueError(f"transport_options ({sorted(unknown)}) must be among ['backend', 'threads', 'timeout']")
