"""The Ray actor around a dispatch. Thin: it builds the buffer from a recipe, serves frames, and obeys its owner."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import psutil
import torch

from replay_service.buffer.replay_buffer import ReplayBuffer
from replay_service.records import ServiceAddress
from replay_service.service.doors import Doors
from replay_service.service.roster import Roster
from replay_service.service.step_dispatch import dispatch_for
from replay_service.service.telling import left_to_clients
from replay_service.wire.failures import code_of, words_of
from replay_service.wire.packing import Frame
from replay_service.wire.ray_objects import node_address, readable, sendable

__all__ = ["OWNER_VERBS", "ReplayActor"]

OWNER_VERBS = frozenset(
    {
        "anneal",
        "append_transform",
        "dropnull",
        "empty",
        "end_streams",
        "insert_transform",
        "load_state_dict",
        "mark_update",
        "register_load_hook",
        "register_save_hook",
        "save_hdf5",
        "set_batch",
        "set_rng",
        "set_sampler",
        "set_storage",
        "set_writer",
        "share",
        "state_dict",
        "synchronize",
    }
)
"""What only the owner may ask for; a closed list, like the clients' verbs."""


class ReplayActor:
    """Hosts one buffer.

    Args:
        recipe: makes the buffer, here and not at the owner's, so that its memory is this process's own.
        address: what the service is called, how it is reached and how long calls may take, for `describe` and `stats`.
        threads: threads torch may use within one operation.
        allow_callables: run predicates that clients send as functions.
    """

    def __init__(
        self,
        recipe: Callable[[], ReplayBuffer],
        address: ServiceAddress,
        threads: int,
        allow_callables: bool = False,
    ) -> None:
        torch.set_num_threads(threads)
        self._address = address
        self._started = time.monotonic()
        self._process = psutil.Process(os.getpid())
        self._failure: tuple[int, str] | None = None
        try:
            self._buffer = recipe()
        except Exception as error:
            self._failure = code_of(error), words_of(error)
            return
        self._transforms: Any = getattr(self._buffer, "transform", None)
        leave = getattr(self._transforms, "leave_to_clients", None)
        if leave is not None:
            leave()
        self._dispatch = dispatch_for(self._buffer, self._service_stats, allow_callables)
        self._doors = Doors(self._dispatch.serve, node_address())
        self._roster = Roster(node_address())

    def serve(self, frame: Frame | bytes, objects: Any = None) -> Any:
        """Answers one request; the reply is a frame, or a frame and objects."""
        reply, extra = self._dispatch.serve(readable(frame), objects)
        return sendable(reply) if extra is None else (sendable(reply), extra)

    def describe(self) -> dict[str, Any]:
        """What a handle needs to know, asked once; `failure` (code and text) if the buffer could not be built."""
        if self._failure is not None:
            return {"failure": self._failure}
        return {
            **self._dispatch.describe(),
            "transport": self._address.transport,
            "backend": self._address.backend,
            "backends": [] if self._address.transport == "ray" else ["gloo"],
            "timeout_s": self._address.timeout_s,
            "pid": os.getpid(),
            "transforms": self._transforms.for_clients() if left_to_clients(self._buffer) else None,
        }

    def open_channel(self, backend: str = "gloo") -> dict[str, Any]:
        """Starts the service's end of a tensor channel on a thread of its own; the client finds it by `channel_put` and `channel_look`."""
        return self._doors.open(backend)

    def channel_put(self, number: int, key: str, value: bytes) -> None:
        """Publishes a coordinate of the client's end."""
        self._doors.put(number, key, value)

    def channel_look(self, number: int, key: str) -> bytes | None:
        """A coordinate of the service's end, or None if it is not there yet."""
        return self._doors.look(number, key)

    def open_client(self, client_id: str, host: str, pid: int) -> None:
        """Counts a client, which says so again from time to time, until it says `close_client`."""
        self._roster.seen(client_id, host, pid)

    def close_client(self, client_id: str) -> None:
        """Stops counting a client."""
        self._roster.gone(client_id)

    def administer(self, verb: str, *arguments: Any, **settings: Any) -> Any:
        """Runs one of the owner's verbs on the buffer; only a state is returned, never the buffer or a part of it."""
        if verb not in OWNER_VERBS:
            raise ValueError(f"verb ({verb!r}) must be one of {sorted(OWNER_VERBS)}")
        call = getattr(self._buffer, verb, None)
        if call is None:
            raise TypeError(f"{verb} must be a call of the hosted buffer; a {type(self._buffer).__name__} has none")
        result = call(*arguments, **settings)
        return result if verb == "state_dict" else None

    def drained(self) -> bool:
        """True; answered after every call that came before it, so that an owner can wait for them."""
        return True

    def release(self) -> None:
        """Removes what would outlive this process: a killed one runs no exit handlers."""
        self._dispatch.release()

    def _service_stats(self) -> dict[str, Any]:
        return {
            "name": self._address.name,
            "namespace": self._address.namespace,
            "transport": self._address.transport,
            "uptime_s": time.monotonic() - self._started,
            "memory_bytes": self._process.memory_info().rss,
            "clients": len(self._roster),
            "channels": len(self._doors),
            "pid": self._process.pid,
        }
