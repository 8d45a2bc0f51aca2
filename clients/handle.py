"""The handle: every call of a buffer that lives elsewhere. It pickles as an address."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from clients.conversing import Conversing
from clients.decoding import decode_trajectories
from clients.futures import Future
from clients.joining import find_service, join_ray
from clients.prefetch import Prefetch, PrefetchThreads
from clients.reception import Reception
from clients.requests import (
    end_arguments,
    extend_request,
    object_request,
    put_objects,
    query_request,
    records_request,
    update_request,
)
from replay_service.arguments import numbers_of, positive_seconds
from replay_service.errors import LayoutError
from replay_service.info import carried_priority, priorities_of
from replay_service.records import ConditionalUpdateResult, ServiceAddress, UpdateResult
from replay_service.sources import source_entries
from replay_service.specs import Key
from replay_service.structure import flatten_rows, row_of
from replay_service.wire.channel import Channel
from replay_service.wire.indices import encode_index, names_one, record_entries, records_named
from replay_service.wire.message import Message, compose, static_text
from replay_service.wire.verbs import Verb

__all__ = ["ReplayClient", "connect"]

DEFAULT_TIMEOUT_S = 30.0


class ReplayClient(Conversing):
    """A handle on a hosted buffer, with the calls of a local one.

    It can be pickled, handed through Ray, and used by several threads; every process has a conversation of its own. Each call takes
    `timeout` in seconds (None: the service's default) and raises `ReplayTimeoutError` after it, `ServiceUnavailableError` if the
    service is dead or unreachable, and `ClosedError` after `close`. Records that do not fit raise `LayoutError`; nothing is written.

    Args:
        address: where the service lives, as `owner.address` gives it.
        channel: what carries the messages; None joins the service over Ray at the first call.
    """

    owners_only = (*Conversing.owners_only, "empty", "set_sampler", "set_storage", "set_writer")

    def __init__(self, address: ServiceAddress, channel: Channel | None = None) -> None:
        super().__init__(address, channel)
        self._reception = Reception(lambda: self._channels.transforms(address.timeout_s))

    def __reduce__(self) -> tuple[Any, ...]:
        return ReplayClient, (self._address,)

    # -- writing ----------------------------------------------------------------------------------------------------

    def extend(self, data: Any, *, update_priority: bool | None = None, timeout: float | None = None) -> Any:
        """Appends a batch `[B, …]`, all of it or nothing; returns the slot of every record, int64 `[B]`.

        A service of several buffers returns a TensorDict of `buffer_ids` and `index`, as the local one.
        """
        return _written(self._call(extend_request(data, update_priority), timeout))

    def add(self, data: Any, *, timeout: float | None = None) -> int:
        """Appends one record (no leading dimension) and returns its slot."""
        try:
            request = records_request(Verb.ADD, row_of(data))
        except LayoutError as error:
            request = object_request(Verb.ADD, data, error)
        index = _written(self._call(request, timeout))
        return int(index[0]) if isinstance(index, Tensor) and index.ndim == 1 else index

    def submit_extend(self, data: Any) -> Future[Any]:
        """Sends an extend without waiting; several may be in flight (bounded), and they are applied in order."""
        request = extend_request(data, None)
        return self._submit(request, _written)

    # -- sampling ---------------------------------------------------------------------------------------------------

    def sample(self, batch_size: int | None = None, *, return_info: bool = False, timeout: float | None = None) -> Any:
        """Draws a batch `[batch_size, …]`, or `(data, info)`: contiguous, writable, the caller's own.

        Raises:
            EmptyBufferError: there is nothing to draw.
            ValueError, TypeError: `batch_size` is missing, not an integer or not positive.
        """
        reply = self._call(self._reception.request(batch_size, return_info), timeout)
        return self._reception.sample(reply, return_info)

    def submit_sample(self, batch_size: int | None = None) -> Future[Any]:
        """Asks for a sample without waiting."""
        return self._submit(
            self._reception.request(batch_size, False), lambda reply: self._reception.sample(reply, False)
        )

    def prefetch(self, batch_size: int | None = None, depth: int = 2) -> Prefetch[Any]:
        """Samples without end, of which `depth` are asked for ahead: the next travels while this one trains.

        Transforms that the service left to its clients, such as the decoding of video, run on `depth` threads meanwhile.
        What is returned is an iterator that can be closed, also by `with`.
        """
        self._reception.request(batch_size, False)
        threads = PrefetchThreads(depth, lambda: self._reception.has_transforms)
        return Prefetch(lambda: threads.started(self.submit_sample(batch_size)), depth, self._address.timeout_s)

    # -- priorities and late writes ---------------------------------------------------------------------------------

    def update_priority(
        self, index: Any, priority: Any, *, generation: Tensor | None = None, timeout: float | None = None
    ) -> UpdateResult:
        """Sets the priorities of records `index` `[B]`; with `generation`, those overwritten since are skipped."""
        entries = [*record_entries(index), (("priority",), numbers_of("priority", priority))]
        if generation is not None:
            entries.append((("generation",), numbers_of("generation", generation)))
        reply = self._call(compose(Verb.UPDATE_PRIORITY, entries), timeout)
        return UpdateResult(reply.tensor("updated"))

    def update_tensordict_priority(self, data: Any, *, priority_key: str | Key | None = None) -> UpdateResult:
        """Sets the priorities of a sampled batch from its entry `priority_key` (None: the service's)."""
        priority_key = self._address.priority_key if priority_key is None else priority_key
        index, priority, generation = priorities_of(data, carried_priority(data, priority_key))
        return self.update_priority(index, priority, generation=generation)

    def update_if_present(
        self,
        *,
        index: Any,
        generation: Tensor,
        patch: Any,
        version_key: str | Key | None = None,
        version: Tensor | int | None = None,
        require_newer: bool = False,
        timeout: float | None = None,
    ) -> ConditionalUpdateResult:
        """Patches the records that (index, generation) still names; as `ReplayBuffer.update_if_present`."""
        request = update_request(index, generation, patch, version_key, version, require_newer)
        return _updated(self._call(request, timeout))

    def submit_update_if_present(
        self,
        *,
        index: Any,
        generation: Tensor,
        patch: Any,
        version_key: str | Key | None = None,
        version: Tensor | int | None = None,
        require_newer: bool = False,
    ) -> Future[ConditionalUpdateResult]:
        """As `update_if_present`, without waiting; several may be in flight (bounded), and they are applied in order."""
        return self._submit(update_request(index, generation, patch, version_key, version, require_newer), _updated)

    # -- records by index -------------------------------------------------------------------------------------------

    def __getitem__(self, index: Any) -> Any:
        """The records at `index`; `IndexError` outside what is filled."""
        arguments, entries = encode_index(index)
        is_entry = bool(entries) and entries[0][0] == ("key",)
        try:
            reply = self._call(compose(Verb.GET, entries, arguments=arguments), None)
        except KeyError:
            if is_entry and self._channels.transforms(self._address.timeout_s) is not None:
                return self[:][index]  # an entry that is made here
            raise
        if is_entry and self._reception.is_left(reply):
            return self[:][index]
        return self._reception.records(reply)

    def __setitem__(self, index: Any, data: Any) -> None:
        """Overwrites filled records in place."""
        arguments, entries = encode_index(index)
        single = names_one(arguments)
        try:
            rows = row_of(data) if single else flatten_rows(data)
        except LayoutError as error:
            request = compose(Verb.SET, entries, arguments=arguments)
            put_objects(request, data, error)
        else:
            entries += [(("data", *key), tensor) for key, tensor in zip(rows.keys, rows.tensors, strict=True)]
            entries += source_entries(rows.spec, rows.keys, rows.tensors)
            arguments = (*arguments, *(0,) * (5 - len(arguments)), int(single))
            static = static_text({"spec": rows.spec})
            request = compose(Verb.SET, entries, static=static, rows=rows.count, arguments=arguments)
        self._call(request, None)

    def read_all_in_order(self, end: int | None = None, *, timeout: float | None = None) -> Any:
        """The leading `end` slots (all for None) in storage order."""
        return self._reception.records(self._call(Message(Verb.READ_ALL, arguments=end_arguments(end)), timeout))

    def write_all(self, data: Any, end: int | None = None, *, timeout: float | None = None) -> None:
        """Overwrites the leading `end` slots (all for None)."""
        arguments = end_arguments(end)
        try:
            request = records_request(Verb.WRITE_ALL, flatten_rows(data), arguments)
        except LayoutError as error:
            request = object_request(Verb.WRITE_ALL, data, error, arguments)
        self._call(request, timeout)

    def query(
        self,
        predicate: Any = None,
        *,
        trajectory_key: str | Key | None = None,
        timeout: float | None = None,
    ) -> list[Any]:
        """The stored trajectories for which `predicate` (made of `traj`; all for None) is true; as `ReplayBuffer.query`.

        It is evaluated where the steps are, and only the matches travel. A function as `predicate` needs Ray objects and a service that
        was started with `allow_callables=True`.
        """
        return decode_trajectories(self._call(query_request(predicate, trajectory_key), timeout))

    @property
    def batch_size(self) -> int | None:
        """Default size of a sample."""
        return self._address.batch_size


def _written(reply: Message) -> Any:
    """Where records were written: slots `[B]`, coordinates `[B, ndim]`, or a TensorDict of buffers and slots."""
    slots = reply.optional("index")
    return records_named(reply) if slots is None else slots


def _updated(reply: Message) -> ConditionalUpdateResult:
    return ConditionalUpdateResult(reply.tensor("updated"), reply.optional("version_rejected"))


def connect(
    name: str, *, namespace: str = "replay-service", address: str | None = None, timeout: float | None = None
) -> Any:
    """A handle on the running service `name`: a `ReplayClient`, or an `EpisodicClient` if it holds an episodic buffer.

    Args:
        name, namespace: what the service is called.
        address: the Ray cluster to join, if this process has joined none.
        timeout: default timeout of the handle's calls, in seconds; None takes the service's own.

    Raises:
        ValueError: a name or namespace that is none, or a timeout that is not positive.
        ServiceUnavailableError: Ray cannot be reached, or no service has that name.
        ReplayTimeoutError: the service does not answer.
    """
    for label, value in (("name", name), ("namespace", namespace)):
        if not isinstance(value, str) or not value:
            raise ValueError(f"{label} ({value!r}) must be a string that is not empty")
    if address is not None and (not isinstance(address, str) or not address):
        raise ValueError(f"address ({address!r:.80}) must be that of a Ray, such as 'host:port'")
    timeout_s = None if timeout is None else positive_seconds(timeout, DEFAULT_TIMEOUT_S)
    join_ray(address)
    _, known = find_service(name, namespace, timeout_s or DEFAULT_TIMEOUT_S)
    found = ServiceAddress.described(name, namespace, known, timeout_s)
    if known.get("steps") is None:
        return ReplayClient(found)
    from clients.episodic_handle import EpisodicClient  # not at the top: a handle on records needs no batches
    from replay_service.episodic.facts import StepFacts

    return EpisodicClient(found, StepFacts(**known["steps"]))
