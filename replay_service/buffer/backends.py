"""Where a buffer may live. The one place in this room that knows of others, and only by name, so that a local buffer imports no Ray."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

__all__ = ["DIRECT", "RECORDS", "STEPS", "hosted"]

DIRECT = "direct"
RECORDS, STEPS = "records", "steps"
HOSTS = {
    "ray": {
        RECORDS: ("replay_service.service.owner", "RayReplayBuffer"),
        STEPS: ("replay_service.service.episodic_owner", "RayEpisodicBuffer"),
    }
}


def hosted(
    backend: str, buffer_class: type, arguments: tuple[Any, ...], settings: dict[str, Any], kind: str = RECORDS
) -> Any:
    """The owner of a `buffer_class`, which holds `RECORDS` or `STEPS`, that lives on `backend`.

    Raises:
        ValueError: `backend` is not one that exists.
        TypeError: `service_backend_options` is no mapping.
    """
    if not isinstance(backend, str) or backend not in HOSTS:
        raise ValueError(f"service_backend ({backend!r}) must be one of {[DIRECT, *HOSTS]}")
    module, name = HOSTS[backend][kind]
    owner = getattr(importlib.import_module(module), name)
    options = settings.pop("service_backend_options", None) or {}
    if not isinstance(options, Mapping):
        raise TypeError(f"service_backend_options ({options!r:.80}) must be a dict; got {type(options).__name__}")
    return owner(*arguments, replay_buffer_cls=buffer_class, **options, **settings)
