"""Joining the Ray that a service lives in."""

from __future__ import annotations

import ray

from replay_service.errors import ServiceUnavailableError

__all__ = ["join_ray"]


def join_ray(address: str | None) -> None:
    """Joins the Ray at `address` (None: the one on this machine), unless this process has joined one.

    Raises:
        ServiceUnavailableError: no Ray can be reached there.
    """
    if ray.is_initialized():
        return
    try:
        ray.init(address=address or "auto", log_to_driver=False)
    except (ConnectionError, RuntimeError, TimeoutError) as error:
        raise ServiceUnavailableError(f"Ray ({address or 'auto'}) must be reachable; {error}") from error
