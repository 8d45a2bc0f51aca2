"""Bring a service up and take it down: the two commands that change something."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deploy.connection import joined
from deploy.errors import DeployError
from deploy.head import is_running, start_head, stop_head
from deploy.placement import actor_options, shortage
from deploy.settings import Config
from deploy.state import RayRecord, ServiceRecord, State, StateFile
from replay_service.errors import ServiceUnavailableError

__all__ = ["Launched", "Stopped", "down", "up"]

# Once Ray listens, its own node may still be registering.
FIRST_JOIN_TIMEOUT_S = 60.0

Report = Callable[[str], None]


@dataclass(frozen=True)
class Launched:
    """A service that answers.

    Attributes:
        service: its name, namespace and Ray address.
        started_ray: whether this command started that Ray.
        needs_token: whether that Ray may ask for a token.
    """

    service: ServiceRecord
    started_ray: bool
    needs_token: bool


@dataclass(frozen=True)
class Stopped:
    """What `down` did.

    Attributes:
        services: were stopped.
        gone: were recorded, but no longer there.
        ray: address of the Ray that was stopped, or None.
        kept: why the Ray that `up` started was left running, or None.
    """

    services: tuple[ServiceRecord, ...] = ()
    gone: tuple[ServiceRecord, ...] = ()
    ray: str | None = None
    kept: str | None = None


def up(config: Config, file: StateFile, *, report: Report) -> Launched:
    """Start or join Ray, create the service and wait until it answers. If that fails, what was started is stopped.

    Args:
        config: what to bring up.
        file: where it is recorded.
        report: gets a line before each step that takes time.

    Raises:
        ValueError: the name is taken, or the Ray cannot place what is asked for.
        DeployError: Ray is missing or does not start, or the record cannot be written.
        ServiceUnavailableError: Ray or the new service does not answer.
    """
    with file.locked():
        state = _without_dead_ray(file)
        address, started = config.ray.address, None
        if address == "local":
            if state.ray is None:
                report("Starting Ray")
                started = start_head(config.ray)
                state = State(started, state.services)
            address = (started or _own_ray(state)).address
        try:
            if started is not None:
                file.write(state)
            with joined(address, FIRST_JOIN_TIMEOUT_S) if started else joined(address) as joined_address:
                report(f"Creating {config.service.name!r} in the Ray at {joined_address}")
                service = ServiceRecord(config.service.name, config.service.namespace, joined_address)
                _create(config)
                file.write(state.with_service(service))
        except BaseException:
            if started is not None:
                report("Stopping Ray again")
                stop_head(started)
                file.write(state.without_ray())
            raise
    return Launched(service, started is not None, os.environ.get("RAY_AUTH_MODE", "").lower() == "token")


def down(
    file: StateFile,
    target: ServiceRecord | None,
    *,
    timeout_s: float,
    keep_ray: bool = False,
    forget: bool = False,
    report: Report,
) -> Stopped:
    """Stop services after the calls in flight, and the Ray that `up` started once the last service has left it.

    Args:
        file: where they are recorded.
        target: the service to stop; None stops every recorded one, and the Ray whatever else is in it.
        timeout_s: how long calls in flight may take to finish, in seconds.
        keep_ray: leave Ray running.
        forget: drop the record of a service whose Ray cannot be reached.
        report: gets a line before each step that takes time.

    Raises:
        ServiceUnavailableError: the service's Ray does not answer, or there is no such service.
        DeployError: the record cannot be read or written.
    """
    stopped: list[ServiceRecord] = []
    gone: list[ServiceRecord] = []
    with file.locked():
        before = file.read()
        state = _without_dead_ray(file)
        gone += [one for one in before.services if one not in state.services and target in (None, one)]
        targets = [one for one in ([target] if target else state.services) if one not in gone]
        for service in targets:
            report(f"Stopping {service.name!r}")
            recorded = service in state.services
            was_there = _stop(service, timeout_s, tolerant=recorded, forget=forget and recorded)
            (stopped if was_there else gone).append(service)
            state = state.without_service(service)
            file.write(state)
        ray, kept = None, None
        if state.ray is not None and not keep_ray and not state.find(None, None, state.ray.address):
            strangers = [] if target is None else _named_actors(state.ray, [*stopped, *gone])
            if strangers:
                kept = f"it still runs {', '.join(strangers)}"
            else:
                report(f"Stopping the Ray at {state.ray.address}")
                stop_head(state.ray)
                ray = state.ray.address
                file.write(state.without_ray())
    return Stopped(tuple(stopped), tuple(gone), ray, kept)


def _own_ray(state: State) -> RayRecord:
    if state.ray is None:
        raise DeployError("Ray (local) must be recorded before it can be joined")
    return state.ray


def _without_dead_ray(file: StateFile) -> State:
    """The recorded state; a Ray of ours that has died is cleared away first, with every service that was in it."""
    state = file.read()
    if state.ray is not None and not is_running(state.ray):
        stop_head(state.ray)
        state = state.without_ray()
        file.write(state)
    return state


def _maker(config: Config) -> Callable[..., Any]:
    """What makes the buffer, once it is told of the service."""
    if config.episodic is not None:
        return config.episodic.factory()
    from replay_service import TensorDictReplayBuffer

    parts = {"storage": config.storage, "sampler": config.sampler, "writer": config.writer}
    keywords: dict[str, Any] = {role: part.factory() for role, part in parts.items() if part is not None}
    if config.service.priority_key is not None:
        keywords["priority_key"] = config.service.priority_key
    return functools.partial(TensorDictReplayBuffer, batch_size=config.service.batch_size, **keywords)


def _create(config: Config) -> None:
    service = config.service
    options = {
        "name": service.name,
        "namespace": service.namespace,
        "lifetime": service.lifetime,
        "timeout": service.timeout_s,
        "remote_config": actor_options(config.resources),
    }
    try:
        owner: Any = _maker(config)(
            service_backend="ray",
            service_backend_options=options,
            transport=config.transport.kind,
            transport_options=config.transport.options(),
        )
    except ServiceUnavailableError as error:
        lacking = shortage(config.resources)
        if lacking:
            message = f"service ({service.name!r}) must find a place in this Ray; got no answer, not free: {lacking}"
            raise ServiceUnavailableError(message) from error
        raise
    try:
        with owner.client() as client:
            client.stats()
    except BaseException:
        # Nobody would look after a service whose start was given up.
        owner.shutdown(timeout=0.0)
        raise


def _stop(service: ServiceRecord, timeout_s: float, *, tolerant: bool, forget: bool) -> bool:
    """Stop one service. Returns whether it was there; only a recorded one (`tolerant`) may be gone."""
    from replay_service.service.owner import attach

    reached = False
    try:
        with joined(service.address):
            reached = True
            attach(service.name, service.namespace).shutdown(timeout=timeout_s)
    except ServiceUnavailableError as error:
        if tolerant and (reached or forget):
            return False
        if reached:
            raise
        hint = "; `down --forget` drops the record if that Ray is gone for good" if tolerant else ""
        raise ServiceUnavailableError(f"{error}{hint}") from error
    return True


def _named_actors(ray_record: RayRecord, apart_from: list[ServiceRecord]) -> list[str]:
    """Named actors of other people in the Ray that `up` started."""
    with joined(ray_record.address):
        import ray.util

        own = {(one.namespace, one.name) for one in apart_from}
        actors = ray.util.list_named_actors(all_namespaces=True)
        return sorted(one["name"] for one in actors if (one["namespace"], one["name"]) not in own)
