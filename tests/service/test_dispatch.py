"""From a frame to the buffer and back; whatever comes in, a reply goes out and the buffer stays whole."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from clients.decoding import decode_sample
from clients.requests import extend_request, records_request, sample_request
from replay_service import LazyTensorStorage, ListStorage, ReplayBuffer, TensorDictReplayBuffer
from replay_service.arena import Arena
from replay_service.buffer.writers.round_robin import TensorDictRoundRobinWriter
from replay_service.errors import LayoutError, ServiceUnavailableError
from replay_service.service.dispatch import Dispatch
from replay_service.structure import row_of
from replay_service.wire.conversation import Conversation, checked
from replay_service.wire.failures import NOT_DENSE, UNKNOWN_LAYOUT, code_of, error_from
from replay_service.wire.indices import encode_index
from replay_service.wire.layout import Axis, Layout
from replay_service.wire.message import Message, compose, text_of
from replay_service.wire.packing import Frame, ProtocolError, known_layouts, pack, read_header, unpack
from replay_service.wire.verbs import RECORD_VERBS, Verb
from tests.rows import assert_rows_are_whole, stamped_rows
from tests.wire.layouts import messages

ROWS = 20
TAKE = Arena().take


def columns(rows: int = ROWS) -> Dispatch:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100), writer=TensorDictRoundRobinWriter(track_generations=True), batch_size=8
    )
    if rows:
        buffer.extend(stamped_rows(rows))
    return Dispatch(buffer)


def frame_of(message: Message) -> Frame:
    return pack(message, TAKE, with_layout=True)


def ask(dispatch: Dispatch, message: Message, **settings: Any) -> Message:
    reply, objects = dispatch.serve(frame_of(message), message.objects, **settings)
    found = unpack(reply, known_layouts())
    found.objects = objects
    assert found.request_id == message.request_id
    return found


def untouched(dispatch: Dispatch) -> bool:
    buffer = dispatch.buffer
    generations = buffer.storage.generations
    assert generations is not None
    return (
        (len(buffer), buffer.write_count) == (ROWS, ROWS)
        and bool((buffer[:] == stamped_rows(ROWS)).all())
        and not generations.of(torch.arange(ROWS)).any()
    )


def test_it_serves_every_verb() -> None:
    assert columns().verbs == RECORD_VERBS


def test_after_the_end_nothing_is_answered() -> None:
    dispatch = columns()
    dispatch.release()  # its process, and channels to it, may be there for a while yet
    with pytest.raises(ServiceUnavailableError, match="shut down"):
        checked(ask(dispatch, sample_request(16, False)))
    with pytest.raises(ServiceUnavailableError, match="shut down"):
        checked(ask(dispatch, extend_request(stamped_rows(1), None)))


def test_a_sample_is_gathered_into_the_memory_it_is_given() -> None:
    taken = []

    def take(size: int) -> Frame:
        taken.append(TAKE(size))
        return taken[-1]

    reply, _ = columns().serve(frame_of(sample_request(16, False)), take=take)
    assert len(taken) == 1
    assert reply.ctypes.data == taken[0].ctypes.data
    batch = decode_sample(unpack(reply, known_layouts()), False)
    assert_rows_are_whole(batch)
    assert set(batch.keys()) >= {"index", "index_generation"}


def test_what_a_client_knows_is_not_repeated() -> None:
    dispatch = columns()
    message = sample_request(4, False)
    first = read_header(dispatch.serve(frame_of(message))[0])
    assert first.layout_bytes > 0
    message.known_reply = first.digest
    again = read_header(dispatch.serve(frame_of(message))[0])
    assert (again.layout_bytes, again.digest) == (0, first.digest)


def test_a_request_is_only_read() -> None:
    """Such as an array in Ray's shared memory, which must not change; nor may the buffer keep it."""
    dispatch = columns(0)
    frame = frame_of(extend_request(stamped_rows(ROWS), None))
    before = frame.copy()
    dispatch.serve(frame)
    assert (frame == before).all()
    frame[256:] = 0
    assert untouched(dispatch)
    listed = Dispatch(ReplayBuffer(storage=ListStorage(ROWS)))
    frame = frame_of(extend_request(stamped_rows(ROWS), None))
    listed.serve(frame)
    frame[256:] = 0
    assert [int(record["action"]) for record in listed.buffer.storage.get(slice(None))] == list(range(ROWS))


REFUSED: dict[str, Message] = {
    "missing key": extend_request(stamped_rows(2).exclude(("next", "reward")), None),
    "extra key": extend_request(stamped_rows(2).set("more", torch.zeros(2)), None),
    "dtype": extend_request(stamped_rows(2).set("action", torch.zeros(2)), None),
    "row shape": extend_request(stamped_rows(2).set("observation", torch.zeros(2, 1)), None),
    "text": extend_request(["a", "b"], None),
    "record": records_request(Verb.ADD, row_of(stamped_rows(1).exclude("action")[0])),
    "batch size": Message(Verb.SAMPLE, arguments=(-1, 0)),
    "index": compose(Verb.GET, [], arguments=encode_index(ROWS)[0]),
    "no index": Message(Verb.GET),
    "set": compose(Verb.SET, [], arguments=encode_index(0)[0]),
    "priority": compose(Verb.UPDATE_PRIORITY, [(("index",), torch.tensor([0]))]),
    "late": compose(Verb.UPDATE_IF_PRESENT, [(("index",), torch.tensor([0]))]),
    "query": Message(Verb.QUERY),
}


@pytest.mark.parametrize("message", REFUSED.values(), ids=REFUSED)
def test_what_is_refused_changes_nothing(message: Message) -> None:
    dispatch = columns()
    message.request_id = 77
    reply = ask(dispatch, message)
    assert reply.status != 0
    assert text_of(reply)
    assert untouched(dispatch)
    assert dispatch.meters.snapshot()[message.verb.name.lower()]["errors"] == 1


def test_records_whose_leaves_disagree_are_refused() -> None:
    rows = extend_request(stamped_rows(4), None)
    axes = (Axis.ITEMS, *rows.layout.axes[1:])
    torn = Message(Verb.EXTEND, Layout(rows.layout.leaves, axes, rows.layout.static), list(rows.tensors), 4, 3)
    torn.tensors[0] = torn.tensors[0][:3]
    dispatch = columns()
    reply = ask(dispatch, torn)
    assert reply.status == code_of(LayoutError(""))
    assert "same number of rows" in text_of(reply)
    assert untouched(dispatch)


def test_a_layout_that_was_never_announced_is_asked_for() -> None:
    frame = pack(extend_request(stamped_rows(2), None), TAKE, with_layout=False)
    reply, _ = columns().serve(frame)
    assert unpack(reply, known_layouts()).status == UNKNOWN_LAYOUT


def test_a_frame_without_a_verb_is_answered() -> None:
    for frame in (np.zeros(0, np.uint8), np.full(300, 171, np.uint8)):
        reply = unpack(columns().serve(frame)[0], known_layouts())
        assert reply.status == code_of(ProtocolError(""))


@settings(max_examples=100, deadline=None)
@given(messages())
def test_any_message_is_answered(message: Message) -> None:
    dispatch = columns()
    reply = ask(dispatch, message)
    assert reply.status == 0 or text_of(reply)
    assert_rows_are_whole(dispatch.buffer[:])


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(list(REFUSED.values())), st.data())
def test_damaged_requests_are_answered_and_leave_the_buffer_whole(message: Message, data: st.DataObject) -> None:
    frame = frame_of(message).copy()
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, frame.size - 1))] = data.draw(st.integers(0, 255))
    dispatch = columns()
    reply, _ = dispatch.serve(frame)
    unpack(reply, known_layouts())
    assert len(dispatch.buffer) >= ROWS
    assert dispatch.buffer[:].shape[0] == len(dispatch.buffer)


def test_a_reply_of_objects_is_refused_where_none_can_travel() -> None:
    dispatch = Dispatch(ReplayBuffer(storage=ListStorage(5), batch_size=2))
    dispatch.buffer.extend(["a", "b"])
    reply = ask(dispatch, sample_request(None, False), dense_only=True)
    assert reply.status == NOT_DENSE
    assert ask(dispatch, sample_request(None, False)).objects is not None


def test_the_route_is_counted() -> None:
    dispatch = columns()
    ask(dispatch, sample_request(4, False), route="distributed")
    meter = dispatch.meters.snapshot()["sample"]
    assert (meter["rows"], meter["route"], meter["calls"]) == (4, "distributed", 1)
    assert meter["bytes"] > 4 * 49


def test_batches_that_a_collation_makes_travel_as_they_are() -> None:
    def collate(data: TensorDict) -> TensorDict:
        return data.set("doubled", data["action"] * 2)

    dispatch = Dispatch(TensorDictReplayBuffer(storage=LazyTensorStorage(10), collate_fn=collate, batch_size=4))
    dispatch.buffer.extend(stamped_rows(10))
    batch = decode_sample(ask(dispatch, sample_request(None, False)), False)
    assert torch.equal(batch["doubled"], batch["action"] * 2)
    assert torch.equal(batch["index"], batch["action"])


def test_no_write_comes_between_a_draw_and_its_rows() -> None:
    """Generations and rows of a sample belong together, whatever other threads write."""
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(8), writer=TensorDictRoundRobinWriter(track_generations=True), batch_size=32
    )
    dispatch = Dispatch(buffer)
    buffer.extend(stamped_rows(8))
    ended = threading.Event()

    def write() -> None:
        conversation = Conversation()
        for stamp in range(8, 8 * 400, 8):
            message = extend_request(stamped_rows(8, stamp), None)
            frame = conversation.request(message, TAKE)
            checked(conversation.reply(message, dispatch.serve(frame)[0]))
        ended.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not ended.is_set():
        batch = decode_sample(ask(dispatch, sample_request(32, False)), False)
        assert_rows_are_whole(batch)
        assert torch.equal(batch["action"], batch["index"] + 8 * batch["index_generation"])
    thread.join()


def test_a_sample_that_would_exhaust_the_memory_is_refused_before_it_is_drawn() -> None:
    dispatch = columns()
    for size in (2**24 + 1, 2**40, 2**62):
        reply = ask(dispatch, Message(Verb.SAMPLE, arguments=(size, 0)))
        assert isinstance(error_from(reply.status, ""), ValueError)
        assert "batch_size" in text_of(reply)
    assert untouched(dispatch)


def test_a_leaf_keeps_its_place() -> None:
    """Layouts name leaves in the sender's order; the buffer's own order is what is stored."""
    rows = stamped_rows(3)
    turned = TensorDict({key: rows[key] for key in reversed(list(rows.keys()))}, [3])
    dispatch = columns()
    assert checked(ask(dispatch, extend_request(turned, None))).tensor("index").tolist() == [20, 21, 22]
    assert_rows_are_whole(dispatch.buffer[:])
