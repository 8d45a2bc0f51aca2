"""The life of a service, seen by whoever started it: the owner's side, whatever the service holds."""

from __future__ import annotations

import contextlib
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError

from replay_service.arguments import flag_of, positive_seconds
from replay_service.buffer.assembly import batch_size_of
from replay_service.errors import ClosedError, ReplayTimeoutError, ServiceUnavailableError
from replay_service.records import ServiceAddress
from replay_service.service.actor import ReplayActor
from replay_service.service.starting import (
    DEFAULT_TIMEOUT_S,
    STOP_TIMEOUT_S,
    actor_options,
    end_actor,
    ensure_ray,
    mapping_of,
    transport_settings,
)
from replay_service.wire.failures import error_from
from replay_service.wire.ray_objects import cause_of, owns_ray, require_ray

__all__ = ["Ownership"]

START_TIMEOUT_S = 60.0
Self = TypeVar("Self", bound="Ownership")


class Ownership(ABC):
    """Starts an actor, hands out handles, and is the only one who can stop it; a handle is what a pickled owner becomes.

    Args:
        *args, **kwargs: arguments of the buffer's class.
        replay_buffer_cls: the buffer's class.
        ray_init_config: arguments of `ray.init`, used if Ray is not initialised yet.
        remote_config: Ray's actor options.
        transport: `"auto"`, `"ray"` or `"distributed"`.
        transport_options: `backend`, `timeout` (seconds), `threads` (torch threads of the actor).
        delayed_init: start the actor at `start()` instead of now.
        name, namespace, lifetime: as in `remote_config`.
        timeout: default timeout of a call, in seconds.
        allow_callables: let clients send functions, which then run in the actor.

    Raises:
        ValueError, TypeError: an unknown option, a batch size that is none, or a name that is taken.
        ServiceUnavailableError: Ray cannot be reached, or the actor did not start.
    """

    def __init__(
        self,
        *args: Any,
        replay_buffer_cls: Callable[..., Any],
        ray_init_config: dict[str, Any] | None = None,
        remote_config: dict[str, Any] | None = None,
        transport: str = "auto",
        transport_options: dict[str, Any] | None = None,
        delayed_init: bool = False,
        name: str | None = None,
        namespace: str | None = None,
        lifetime: str | None = None,
        timeout: float | None = None,
        allow_callables: bool = False,
        **kwargs: Any,
    ) -> None:
        backend, timeout_s, self._threads = transport_settings(transport, transport_options, timeout)
        self._actor_options = actor_options(remote_config, name, namespace, lifetime)
        if kwargs.get("batch_size") is not None:  # told at once, and not once a process has started
            batch_size_of(kwargs["batch_size"])
        self._ray_init_config = mapping_of("ray_init_config", ray_init_config)
        self._allow_callables = flag_of("allow_callables", allow_callables)
        self._recipe = partial(replay_buffer_cls, *args, **kwargs)
        self._address = ServiceAddress(
            self._actor_options["name"],
            self._actor_options["namespace"],
            kwargs.get("batch_size"),
            transport,
            backend,
            timeout_s,
            getattr(replay_buffer_cls, "merges_info", False),
        )
        self._actor: Any = None
        self._client: Any = None
        self._known: dict[str, Any] = {}
        self._finalizer: Callable[[], Any] | None = None
        if not delayed_init:
            self.start()

    @abstractmethod
    def _handle(self) -> Any:
        """A new handle on the service at `_address`, which says `_known` of itself."""

    # -- life -------------------------------------------------------------------------------------------------------

    def start(self: Self) -> Self:
        """Starts the actor and waits until it answers; without an effect if it runs."""
        if self._client is not None and self._client.closed:
            raise ClosedError("owner must be open; it was shut down")
        if self._actor is not None:
            return self
        ensure_ray(self._ray_init_config)
        address = self._address
        if _exists(address):
            raise ValueError(
                f"name ({address.name!r}) must be free in namespace {address.namespace!r}; a service has it"
            )
        actor_class = ray.remote(ReplayActor)
        try:
            self._actor = actor_class.options(**self._actor_options).remote(
                self._recipe,
                address,
                self._threads,
                self._allow_callables,
            )
            known = ray.get(self._actor.describe.remote(), timeout=START_TIMEOUT_S)
        except ValueError as error:
            raise ValueError(
                f"name ({address.name!r}) must be free in namespace {address.namespace!r}; {error}"
            ) from error
        except TypeError as error:  # from Ray, before anything was started
            raise TypeError(
                f"arguments of the buffer must be something that pickle takes; {cause_of(error)}"
            ) from error
        except GetTimeoutError as error:
            self._discard()
            raise ServiceUnavailableError(
                f"service ({address.name}) must start within {START_TIMEOUT_S} s; are its resources free?"
            ) from error
        except RayError as error:
            self._discard()
            raise ServiceUnavailableError(f"service ({address.name}) must start; {_reason(error)}") from error
        if "failure" in known:
            self._discard()
            raise error_from(*known["failure"])
        self._address = replace(
            address,
            batch_size=known["batch_size"],
            merges_info=known["merges_info"],
            priority_key=known["priority_key"],
        )
        self._known = known
        self._client = self._handle()
        if self._actor_options.get("lifetime") != "detached":
            self._finalizer = weakref.finalize(self, _end_quietly, self._actor)
        return self

    def is_alive(self) -> bool:
        """Whether the actor answers."""
        if self._actor is None or not owns_ray():
            return False
        try:
            return bool(ray.get(self._actor.drained.remote(), timeout=DEFAULT_TIMEOUT_S))
        except RayError:
            return False

    def shutdown(self, timeout: float | None = None) -> None:
        """Lets calls in flight finish (up to `timeout` seconds), then stops the actor and waits until it is gone. Idempotent."""
        limit_s = STOP_TIMEOUT_S if timeout is None else _seconds(timeout)
        if self._client is not None:
            self._client.close()
        actor, self._actor = self._actor, None
        if actor is None or not owns_ray():
            return
        with contextlib.suppress(RayError):  # dead already, or too slow to wait for any longer
            ray.get(actor.drained.remote(), timeout=limit_s)
            ray.get(actor.release.remote(), timeout=limit_s)
        end_actor(actor)
        if self._finalizer is not None:
            self._finalizer.detach()  # type: ignore[attr-defined]

    def close(self) -> None:
        """As `shutdown`."""
        self.shutdown()

    def __reduce__(self) -> tuple[Any, ...]:
        # What another process gets is a handle: it can use the buffer in the same words, but not stop it.
        reduced: tuple[Any, ...] = self._handle().__reduce__()
        return reduced

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()

    def adopt(self, name: str, namespace: str) -> None:
        """Takes over a service that runs already (`attach`)."""
        if not ray.is_initialized():
            raise ServiceUnavailableError(
                f"this process must be joined to the Ray of {name!r}; call ray.init(address=…)"
            )
        require_ray(name)
        try:
            self._actor = ray.get_actor(name, namespace=namespace)
            known = ray.get(self._actor.describe.remote(), timeout=START_TIMEOUT_S)
        except (ValueError, AttributeError, RayError) as error:  # AttributeError: an actor that is something else
            raise ServiceUnavailableError(f"name ({name!r}) must be that of a service in {namespace!r}") from error
        self._address = ServiceAddress.described(name, namespace, known)
        self._actor_options = {"name": name, "namespace": namespace, "lifetime": "detached"}
        self._finalizer = None
        self._known = known
        self._client = self._handle()

    # -- handles ----------------------------------------------------------------------------------------------------

    @property
    def address(self) -> ServiceAddress:
        """Where the service lives."""
        return self._address

    @property
    def service_backend(self) -> str:
        """`"ray"`."""
        return "ray"

    @property
    def transport_kind(self) -> str:
        """The transport setting: `"auto"`, `"ray"` or `"distributed"`."""
        return self._address.transport

    def client(self) -> Any:
        """A new handle: picklable, for any process that is joined to the same Ray."""
        self._running()
        return self._handle()

    def clients(self, num_clients: int) -> list[Any]:
        """`num_clients` handles."""
        if isinstance(num_clients, bool) or not isinstance(num_clients, int) or num_clients < 1:
            raise ValueError(f"num_clients ({num_clients!r}) must be a positive integer")
        return [self.client() for _ in range(num_clients)]

    def __repr__(self) -> str:
        state = "running" if self._actor is not None else "stopped"
        return f"{type(self).__name__}({self._address.name!r} in {self._address.namespace!r}, {state})"

    def _running(self) -> Any:
        if self._client is None:
            raise ClosedError("owner must be started first; call start()")
        if self._client.closed:
            raise ClosedError("owner must be open; it was shut down")
        return self._client

    def _administer(self, verb: str, *arguments: Any, **settings: Any) -> Any:
        self._running()
        require_ray(self._address.name)
        try:
            return ray.get(self._actor.administer.remote(verb, *arguments, **settings), timeout=self._address.timeout_s)
        except GetTimeoutError as error:
            raise ReplayTimeoutError(f"timeout ({self._address.timeout_s} s) must cover {verb}") from error
        except RayTaskError as error:  # first: Ray makes it an instance of its cause's class, too
            raise (error.cause if isinstance(error.cause, Exception) else error) from error
        except TypeError as error:  # from Ray, before anything was sent
            raise TypeError(f"arguments of {verb} must be something that pickle takes; {cause_of(error)}") from error
        except RayError as error:
            raise ServiceUnavailableError(
                f"{self._address.name} must be alive and reachable; {_reason(error)}"
            ) from error

    def _discard(self) -> None:
        if self._actor is not None:
            _end_quietly(self._actor)
            self._actor = None


def _exists(address: ServiceAddress) -> bool:
    try:
        ray.get_actor(address.name, namespace=address.namespace)
    except ValueError:
        return False
    return True


def _reason(error: Exception) -> str:
    """The line that says what happened: the last one where Ray shows the traceback of a constructor, else the first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1] if "creation task" in lines[0] else lines[0]


def _seconds(timeout: Any) -> float:
    """A time to wait, which may be none; `ValueError` for what is no number of seconds."""
    return 0.0 if isinstance(timeout, int | float) and timeout == 0 else positive_seconds(timeout, STOP_TIMEOUT_S)


def _end_quietly(actor: Any) -> None:
    if owns_ray():  # a fork must not end what its parent started
        ray.kill(actor)
