"""The owner of a hosted buffer: starts it, hands out handles, and is the only one who can stop it."""

from __future__ import annotations

from typing import Any

from clients.handle import ReplayClient
from replay_service.buffer.replay_buffer import ReplayBuffer
from replay_service.service.calls import OwnerCalls
from replay_service.service.ownership import Ownership
from replay_service.service.starting import DEFAULT_NAMESPACE

__all__ = ["DEFAULT_NAMESPACE", "RayReplayBuffer", "attach"]


class RayReplayBuffer(Ownership, OwnerCalls):
    """A buffer in a Ray actor, seen by whoever started it.

    It has the calls of a local buffer, which go through a handle of its own, the settings that only an owner may change, and the end:
    `shutdown`, also by leaving a `with` block. Handles (`client()`) can do neither, and a handle is what a pickled owner becomes.

    Args:
        *args, **kwargs: arguments of the buffer's class; storages, samplers and writers as classes or factories, which run in the actor.
        replay_buffer_cls: the buffer's class.
        ray_init_config: arguments of `ray.init`, used if Ray is not initialised yet.
        remote_config: Ray's actor options: `num_cpus`, `resources`, `scheduling_strategy`, `name`, `namespace`, `lifetime`…
        transport: `"auto"`, `"ray"` or `"distributed"`.
        transport_options: `backend` (`"gloo"`, `"nccl"`), `timeout` (seconds), `threads` (torch threads of the actor).
        delayed_init: start the actor at `start()` instead of now.
        name, namespace, lifetime: as in `remote_config`.
        timeout: default timeout of a call, in seconds.
        allow_callables: let clients send functions as predicates of `query`, which then run in the actor. False: only expressions of
            `traj`, which are data.

    Raises:
        ValueError: an unknown option, or a name that is taken.
        ServiceUnavailableError: Ray cannot be reached, or the actor did not start.
    """

    def __init__(self, *args: Any, replay_buffer_cls: type[ReplayBuffer] = ReplayBuffer, **kwargs: Any) -> None:
        super().__init__(*args, replay_buffer_cls=replay_buffer_cls, **kwargs)

    def client(self) -> ReplayClient:
        """A new handle: picklable, for any process that is joined to the same Ray."""
        handle: ReplayClient = super().client()
        return handle

    def _handle(self) -> ReplayClient:
        return ReplayClient(self._address)


def attach(name: str, namespace: str | None = None) -> RayReplayBuffer:
    """The owner's power over a service that runs already, for operators.

    Raises:
        ServiceUnavailableError: no service of that name.
    """
    owner = RayReplayBuffer.__new__(RayReplayBuffer)
    owner.adopt(name, namespace or DEFAULT_NAMESPACE)
    return owner
