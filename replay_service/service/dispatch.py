"""From a request to the buffer and back to a reply: a plain class, so that all of it can be tested without Ray.

A sample is gathered straight into the reply that is sent. A reply that is no dense tensor travels as an object, where the route allows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from replay_service.arena import Arena
from replay_service.buffer.replay_buffer import ReplayBuffer
from replay_service.errors import LayoutError, ServiceUnavailableError
from replay_service.service import replies
from replay_service.service.meters import Meters
from replay_service.service.saving import Saving
from replay_service.service.telling import Told, left_to_clients, reads_info_at_clients
from replay_service.specs import narrowed
from replay_service.structure import Rows, build
from replay_service.wire.failures import NOT_DENSE, code_of, words_of
from replay_service.wire.indices import decode_index, record_entries, records_named
from replay_service.wire.message import EMPTY, TEXT, Message, compose
from replay_service.wire.packing import (
    Frame,
    Take,
    TakeFlat,
    begin,
    begin_apart,
    known_layouts,
    pack,
    pack_apart,
    read_header,
    unpack,
)
from replay_service.wire.verbs import DRAWING_VERBS, Verb

__all__ = ["Dispatch"]

Extra = Callable[[], dict[str, Any]]

MOST_SAMPLED = 1 << 24


class Dispatch:
    """Serves one buffer.

    Args:
        buffer: the buffer; every verb is one of its public calls.
        service_stats: what the host knows of itself, for `stats`.
        allow_callables: run predicates that clients send as functions; without it no code travels.
        most_layouts: how many layouts of requests are remembered; one that was forgotten is asked for again.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        service_stats: Extra | None = None,
        *,
        allow_callables: bool = False,
        most_layouts: int = 1024,
    ) -> None:
        self.buffer = buffer
        self._allow_callables = allow_callables
        self.meters = Meters()
        self._service_stats = service_stats or dict
        self._layouts = known_layouts(most_layouts)
        self._arena = Arena()
        self._ended = False
        saving = Saving(buffer)
        self._handlers: dict[Verb, Callable[[Message], Message | replies.Gather]] = {
            Verb.EXTEND: self._extend,
            Verb.ADD: self._add,
            Verb.SAMPLE: self._sample,
            Verb.UPDATE_PRIORITY: self._update_priority,
            Verb.UPDATE_IF_PRESENT: self._update_if_present,
            Verb.GET: self._get,
            Verb.SET: self._set,
            Verb.READ_ALL: self._read_all,
            Verb.WRITE_ALL: self._write_all,
            Verb.QUERY: self._query,
            Verb.LENGTH: self._length,
            Verb.WRITE_COUNT: self._write_count,
            Verb.STATS: self._stats,
            Verb.CLOSE: self._close,
            Verb.DUMPS: saving.dumps,
            Verb.LOADS: saving.loads,
        }

    @property
    def verbs(self) -> frozenset[Verb]:
        """The verbs this dispatch serves: all of its kind of buffer."""
        return frozenset(self._handlers)

    def serve(
        self,
        frame: Frame,
        objects: Any = None,
        *,
        take: Take | None = None,
        route: str = "ray",
        dense_only: bool = False,
        flat: Tensor | None = None,
        take_flat: TakeFlat | None = None,
    ) -> tuple[Frame, Any]:
        """The reply frame (and objects) to a request frame (and objects). Never raises: an error is a reply.

        Args:
            frame: the request; it is only read.
            objects: what of the request is no tensor.
            take: gives memory for the reply; None takes recycled memory of this dispatch.
            route: the name of the channel, for the meters.
            dense_only: the channel carries no objects; a reply made of them is refused before anything is drawn, if it can be told.
            flat: the request's payload, where it came apart from the frame.
            take_flat: gives device memory for the reply's payload, which is then returned in the place of objects.
        """
        take = take or self._arena.take
        begun = time.perf_counter()
        verb: Verb | None = None
        request_id = 0
        try:
            header = read_header(frame)
            verb, request_id = header.verb, header.request_id
            if self._ended:
                raise ServiceUnavailableError("the service must be running; it was shut down")
            request = unpack(frame, self._layouts, flat)
            request.objects = objects
            if dense_only and verb in DRAWING_VERBS and self.buffer.never_dense():
                raise NotDenseError("data must be dense tensors to travel as such")
            answer = self._handler_of(verb)(request)
            reply, out = self._packed(request, answer, take, take_flat)
            if dense_only and reply.objects is not None:
                raise NotDenseError("reply must be made of dense tensors to travel as such")
        except Exception as error:
            self.meters.failed(verb, route)
            return self._failure(verb or Verb.STATS, request_id, error, take), None
        self.meters.served(
            verb, route, max(request.rows, reply.rows), frame.size + out.size, time.perf_counter() - begun
        )
        return out, reply.objects if reply.flat is None else reply.flat

    def describe(self) -> dict[str, Any]:
        """What a handle needs to know of the buffer, as long as it lives."""
        return {
            "batch_size": self.buffer.batch_size,
            "merges_info": self.buffer.merges_info,
            "columnar": self.buffer.storage.columnar,
            "priority_key": getattr(self.buffer, "priority_key", "td_error"),
        }

    def release(self) -> None:
        """Answers nothing any more, and removes what of the buffer would outlive this process.

        Ray says that an actor is dead before its process is gone; until then clients with an open channel still reach it.
        """
        with self.buffer.lock:
            self._ended = True
            self._release_buffer()

    def _release_buffer(self) -> None:
        self.buffer.storage.release()

    def _handler_of(self, verb: Verb) -> Callable[[Message], Message | replies.Gather]:
        if verb not in self._handlers:
            raise TypeError(
                f"verb ({verb.name.lower()}) must be one that this kind of buffer serves; use its own handle"
            )
        return self._handlers[verb]

    def _packed(
        self, request: Message, answer: Message | replies.Gather, take: Take, take_flat: TakeFlat | None
    ) -> tuple[Message, Frame]:
        if isinstance(answer, Message):
            _address(answer, request)
            with_layout = _needs_layout(answer, request)
            if take_flat is not None:
                return answer, pack_apart(answer, take, take_flat, with_layout=with_layout)
            return answer, pack(answer, take, with_layout=with_layout)
        with self.buffer.lock:  # from the draw until its rows are in the reply: no write comes between
            reply = answer.draw()
            _address(reply, request)
            with_layout = _needs_layout(reply, request)
            if take_flat is not None:
                out, views = begin_apart(reply, take, take_flat, with_layout=with_layout)
            else:
                out, views = begin(reply, take, with_layout=with_layout)
            answer.fill(views)
        return reply, out

    def _failure(self, verb: Verb, request_id: int, error: Exception, take: Take) -> Frame:
        code = NOT_DENSE if isinstance(error, NotDenseError) else code_of(error)
        reply = _text_message(verb, words_of(error))
        reply.status, reply.request_id = code, request_id
        return pack(reply, take, with_layout=False)

    # -- writing ----------------------------------------------------------------------------------------------------

    def _extend(self, request: Message) -> Message:
        flag = request.argument(0, -1)
        data = _listed(request.records()) if request.argument(1) else self._data_of(request)
        index = self.buffer.extend(data, update_priority=None if flag < 0 else bool(flag))
        return compose(request.verb, record_entries(index))

    def _add(self, request: Message) -> Message:
        if request.objects is not None:
            index = self.buffer.add(request.objects[0])
            return compose(request.verb, record_entries(index))
        if self.buffer.takes_rows() and self.buffer.storage.ndim == 1:
            index = self.buffer.extend(request.records())
        else:
            index = self.buffer.add(_only_row(request.records()))
        return compose(request.verb, record_entries(index))

    def _data_of(self, request: Message) -> Any:
        if request.objects is not None:
            return request.objects[0]
        rows = request.records()
        return rows if self.buffer.takes_rows() else rows.build()

    # -- sampling ---------------------------------------------------------------------------------------------------

    def _sample(self, request: Message) -> Message | replies.Gather:
        size = request.argument(0)
        if size > MOST_SAMPLED:  # before anything is drawn: one client must not exhaust the memory of all
            raise ValueError(f"batch_size ({size}) must be at most {MOST_SAMPLED} through a handle")
        wants_info = bool(request.argument(1))
        wants_info = wants_info or reads_info_at_clients(self.buffer)
        with_info = wants_info or self.buffer.merges_info
        leaves, spec = self.buffer.dense_leaves(), self.buffer.storage.spec()
        told = Told.by(request, self.buffer)
        if leaves is not None and spec is not None:
            return replies.Gather(request.verb, self.buffer, size or None, with_info, told)
        data, info = self.buffer.sample(size or None, return_info=True)
        # What is merged travels as part of the data.
        return replies.sampled(request.verb, data, info if wants_info else {}, self.buffer.merges_info, told)

    # -- priorities and late writes ---------------------------------------------------------------------------------

    def _update_priority(self, request: Message) -> Message:
        index = records_named(request)
        result = self.buffer.update_priority(
            index, request.tensor("priority"), generation=request.optional("generation")
        )
        return compose(request.verb, [(("updated",), result.updated)])

    def _update_if_present(self, request: Message) -> Message:
        key = request.statics.get("version_key")
        patch: Any = request.objects[0] if request.objects is not None else request.records("patch")
        result = self.buffer.update_if_present(
            index=records_named(request),
            generation=request.tensor("generation"),
            patch=patch,
            version_key=None if key is None else tuple(key),
            version=request.optional("version"),
            require_newer=bool(request.argument(0)),
        )
        entries = [(("updated",), result.updated)]
        if result.version_rejected is not None:
            entries.append((("version_rejected",), result.version_rejected))
        return compose(request.verb, entries)

    # -- records by index -------------------------------------------------------------------------------------------

    def _get(self, request: Message) -> Message:
        index, single = decode_index(request)
        return replies.records(request.verb, self.buffer[index], single, left_to_clients(self.buffer))

    def _set(self, request: Message) -> Message:
        index, _ = decode_index(request)
        data = request.objects[0] if request.objects is not None else request.records()
        if isinstance(data, Rows) and (request.argument(5) or not self.buffer.takes_rows()):
            data = _only_row(data) if request.argument(5) else data.build()
        self.buffer[index] = data
        return Message(request.verb)

    def _read_all(self, request: Message) -> Message:
        data = self.buffer.read_all_in_order(_end_of(request))
        return replies.records(request.verb, data, single=False, left=left_to_clients(self.buffer))

    def _write_all(self, request: Message) -> Message:
        data = request.objects[0] if request.objects is not None else request.records()
        if isinstance(data, Rows) and not self.buffer.takes_rows():
            data = data.build()
        self.buffer.write_all(data, _end_of(request))
        return Message(request.verb)

    def _query(self, request: Message) -> Message:
        return replies.trajectories(request, self.buffer, self._allow_callables)

    # -- counts -----------------------------------------------------------------------------------------------------

    def _length(self, request: Message) -> Message:
        return Message(request.verb, arguments=(len(self.buffer),))

    def _write_count(self, request: Message) -> Message:
        return Message(request.verb, arguments=(self.buffer.write_count,))

    def _stats(self, request: Message) -> Message:
        service = {**self._service_stats(), "verbs": self.meters.snapshot()}
        return _text_message(request.verb, json.dumps({**self.buffer.stats(), "service": service}))

    def _close(self, request: Message) -> Message:
        return Message(request.verb)


class NotDenseError(LayoutError):
    """The reply is no dense tensor, and the channel carries nothing else."""


def _address(reply: Message, request: Message) -> None:
    reply.request_id = request.request_id


def _needs_layout(reply: Message, request: Message) -> bool:
    return reply.layout.digest != request.known_reply and reply.layout is not EMPTY and reply.layout is not TEXT


def _text_message(verb: Verb, text: str) -> Message:
    data = torch.from_numpy(np.frombuffer(text.encode(), np.uint8).copy())
    return Message(verb, TEXT, [data], items=data.numel())


def _end_of(request: Message) -> int | None:
    return request.argument(1) if request.argument(0) else None


def _listed(rows: Rows) -> list[Any]:
    """The records of a list that travelled as rows."""
    return [_only_row(rows[row : row + 1]) for row in range(rows.count)]


def _only_row(rows: Rows) -> Any:
    """The single record of `rows`, without its leading dimension."""
    return build(narrowed(rows.spec, 1), [tensor[0] for tensor in rows.tensors], ())
