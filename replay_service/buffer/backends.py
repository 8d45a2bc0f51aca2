"""Where a buffer may live. The one place in this room that knows of others, and only by name, so that a local buffer imports no Ray."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["DIRECT", "hosted"]

DIRECT = "direct"
HOSTS = {"ray": ("replay_service.service.owner", "RayReplayBuffer")}


def hosted(backend: str, buffer_class: type, arguments: tuple[Any, ...], settings: dict[str, Any]) -> Any:
    """The owner of a `buffer_class` that lives on `backend`.

    Raises:
        ValueError: `backend` is not one that exists.
    """
    if backend not in HOSTS:
        raise ValueError(f"service_backend ({backend!r}) must be one of {[DIRECT, *HOSTS]}")
    module, name = HOSTS[backend]
    owner = getattr(importlib.import_module(module), name)
    options = settings.pop("service_backend_options", None) or {}
    return owner(*arguments, replay_buffer_cls=buffer_class, **options, **settings)
