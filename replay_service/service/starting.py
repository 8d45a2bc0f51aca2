"""What a service is started with: Ray itself, the actor's options, the transport's."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from typing import Any

import ray
import torch
from ray.exceptions import RayError

from replay_service.arguments import positive_integer, positive_seconds
from replay_service.errors import ServiceUnavailableError, TransportUnavailableError
from replay_service.service.actor import ReplayActor
from replay_service.wire.negotiate import TRANSPORTS
from replay_service.wire.ray_objects import require_ray

__all__ = [
    "DEFAULT_NAMESPACE",
    "DEFAULT_TIMEOUT_S",
    "STOP_TIMEOUT_S",
    "actor_options",
    "default_threads",
    "end_actor",
    "ensure_ray",
    "mapping_of",
    "transport_settings",
]

DEFAULT_NAMESPACE = "replay-service"
DEFAULT_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
POLL_EVERY_S = 0.01
BACKENDS = ("gloo", "nccl")
OPTIONS = ("backend", "threads", "timeout")


def default_threads() -> int:
    """Threads torch may use in the actor: half of the cores, so that they do not spin beside those of the network."""
    return max(1, (os.cpu_count() or 2) // 2)


def ensure_ray(config: dict[str, Any] | None = None) -> None:
    """Initialises Ray if this process has not joined one.

    Raises:
        ServiceUnavailableError: Ray cannot be started or reached.
    """
    if ray.is_initialized():
        require_ray("Ray")
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
    """Ray's actor options, with a name and a namespace in any case.

    Raises:
        TypeError: the options are no mapping, or a name is no string.
        ValueError: an option that Ray does not know, or a value it does not take.
    """
    options = {"num_cpus": 1, **mapping_of("remote_config", given)}
    options["name"] = _text("name", options.get("name") if name is None else name, f"replay-{uuid.uuid4().hex[:12]}")
    options["namespace"] = _text(
        "namespace", options.get("namespace") if namespace is None else namespace, DEFAULT_NAMESPACE
    )
    if lifetime is not None:
        options["lifetime"] = lifetime
    if options.get("lifetime") not in (None, "detached", "non_detached"):
        raise ValueError(f"lifetime ({options['lifetime']!r}) must be None, 'detached' or 'non_detached'")
    try:
        ray.remote(ReplayActor).options(**options)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"remote_config must be options of a Ray actor; {str(error).partition('. Valid ones')[0]}"
        ) from error
    return options


def transport_settings(transport: Any, given: Any, timeout: Any) -> tuple[str, float, int]:
    """Backend, default timeout in seconds, and torch's threads in the actor, as `transport`, `transport_options` and `timeout` say.

    Raises:
        TypeError: `transport_options` is no mapping, or `threads` no integer.
        ValueError: a transport, backend, timeout, number of threads or option that does not exist.
        TransportUnavailableError: NCCL without CUDA.
    """
    options = mapping_of("transport_options", given)
    unknown = [name for name in options if name not in OPTIONS]
    if unknown:
        raise ValueError(f"transport_options ({sorted(map(str, unknown))}) must be among {list(OPTIONS)}")
    if transport not in TRANSPORTS:
        raise ValueError(f"transport ({transport!r:.80}) must be one of {list(TRANSPORTS)}")
    backend = options.get("backend", BACKENDS[0])
    if backend not in BACKENDS:
        raise ValueError(f"transport_options.backend ({backend!r:.80}) must be one of {list(BACKENDS)}")
    if backend == "nccl" and not torch.cuda.is_available():
        raise TransportUnavailableError("backend ('nccl') must find a CUDA device; this machine has none: use 'gloo'")
    timeout_s = positive_seconds(options.get("timeout"), DEFAULT_TIMEOUT_S, "transport_options.timeout")
    threads = options.get("threads")
    threads = default_threads() if threads is None else positive_integer(threads, "transport_options.threads")
    return backend, positive_seconds(timeout, timeout_s), threads


def mapping_of(name: str, given: Any) -> dict[str, Any]:
    """A copy of options, `{}` for None; `TypeError` for what is no mapping."""
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"{name} ({given!r:.80}) must be a dict of options; got {type(given).__name__}")
    return dict(given or {})


def _text(name: str, given: Any, default: str) -> str:
    if given is None:
        return default
    if not isinstance(given, str):
        raise TypeError(f"{name} ({given!r:.80}) must be a string; got {type(given).__name__}")
    if not given:
        raise ValueError(f"{name} ({given!r}) must not be empty; leave it out for one that is made up")
    return given
