"""The tensor channel over a real gloo pair."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from clients.handle import ReplayClient
from replay_service import LazyTensorStorage, ListStorage, ReplayBuffer, TensorDictReplayBuffer
from replay_service.errors import (
    ClosedError,
    EmptyBufferError,
    LayoutError,
    ReplayError,
    ReplayTimeoutError,
    ServiceUnavailableError,
    TransportUnavailableError,
)
from replay_service.records import ServiceAddress
from replay_service.service.dispatch import Dispatch
from replay_service.wire.message import Message
from replay_service.wire.tensor_group import STANDING_BYTES, TensorChannel, show_token
from replay_service.wire.verbs import Verb
from tests.rows import assert_rows_are_whole, stamped_rows
from tests.wire.pair import TIMEOUT_S, Pair, connected

ADDRESS = ServiceAddress("tests", "tests", 8, "distributed")


@pytest.fixture
def buffer() -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(storage=LazyTensorStorage(1000), batch_size=8)


@pytest.fixture
def pair(buffer: TensorDictReplayBuffer) -> Iterator[Pair]:
    with connected(Dispatch(buffer).serve) as made:
        yield made


@pytest.fixture
def client(pair: Pair) -> Iterator[ReplayClient]:
    with ReplayClient(ADDRESS, pair.channel()) as made:
        yield made


def test_batches_of_any_size_in_turn(client: ReplayClient) -> None:
    client.extend(stamped_rows(300))
    for size in (256, 7, 1, 300):
        batch = client.sample(size)
        assert batch.shape == (size,)
        assert_rows_are_whole(batch)
    for rows in (1, 64, 0, 5):
        assert client.extend(stamped_rows(rows)).shape == (rows,)
    assert len(client) == 370


def test_what_comes_back_is_the_callers_own(client: ReplayClient, buffer: TensorDictReplayBuffer) -> None:
    client.extend(stamped_rows(8))
    first = client.sample()
    kept = first.clone()
    first["observation"].zero_()
    second = client.sample()
    second["observation"].fill_(7.0)
    assert (first["observation"] == 0).all()
    assert (first["action"] == kept["action"]).all()
    assert_rows_are_whole(buffer[:])


def test_a_frame_larger_than_what_is_posted_goes_both_ways(client: ReplayClient) -> None:
    width = 2 * STANDING_BYTES // 8 // 500
    data = TensorDict({"wide": torch.arange(500 * width).view(500, width)}, [500])
    client.extend(data)
    read = client.read_all_in_order()
    assert torch.equal(read["wide"], data["wide"])
    # The next request of the same kind is answered in one message: what was learned must fit as well.
    assert torch.equal(client.read_all_in_order()["wide"], read["wide"])


def test_several_in_flight_are_answered_in_order(client: ReplayClient) -> None:
    waiting = [client.submit_extend(stamped_rows(3, stamp=3 * number)) for number in range(40)]
    slots = torch.cat([future.result() for future in waiting])
    assert slots.tolist() == list(range(120))
    assert_rows_are_whole(client.read_all_in_order())


def test_a_future_can_be_asked_whether_it_is_done(client: ReplayClient, wait_until: Any) -> None:
    client.extend(stamped_rows(8))
    future = client.submit_sample(4)
    wait_until(future.done)
    assert future.result().shape == (4,)
    assert future.done()


def test_asking_whether_it_is_done_does_not_lengthen_the_wait_for_a_result() -> None:
    released = threading.Event()

    def slow(frame: Any, objects: Any = None, **settings: Any) -> Any:
        released.wait(TIMEOUT_S)
        return Dispatch(TensorDictReplayBuffer(storage=LazyTensorStorage(4))).serve(frame, objects, **settings)

    with connected(slow) as pair:
        channel = pair.channel()
        pending = channel.submit(Message(Verb.LENGTH), TIMEOUT_S)
        assert not pending.done()
        with pytest.raises(ReplayTimeoutError):
            pending.result(0.05)
        released.set()
        assert pending.result(TIMEOUT_S).argument(0) == 0


@pytest.mark.parametrize("how", ["another call's timeout", "close"])
def test_a_call_whose_pair_was_closed_under_it_is_told_why(how: str) -> None:
    released, asked = threading.Event(), threading.Event()

    def slow(frame: Any, objects: Any = None, **settings: Any) -> Any:
        asked.set()
        released.wait(TIMEOUT_S)
        return Dispatch(TensorDictReplayBuffer(storage=LazyTensorStorage(4))).serve(frame, objects, **settings)

    found: list[BaseException] = []
    with connected(slow) as pair:
        channel = pair.channel()

        def wait() -> None:
            try:
                channel.call(Message(Verb.LENGTH), TIMEOUT_S)
            except BaseException as error:  # handed to the main thread
                found.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert asked.wait(TIMEOUT_S)
        if how == "close":
            channel.close()
        else:
            with pytest.raises(ReplayTimeoutError):
                channel.call(Message(Verb.LENGTH), 0.05)
        waiting.join(TIMEOUT_S)
        released.set()
    assert [type(error) for error in found] == [ClosedError if how == "close" else ReplayTimeoutError]
    assert ("closed while" if how == "close" else "another call's timeout") in str(found[0])


def test_threads_share_one_channel(client: ReplayClient) -> None:
    client.extend(stamped_rows(100))
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for size in range(1, 30):
                assert_rows_are_whole(client.sample(size))
                client.extend(stamped_rows(number + 1))
        except BaseException as error:  # handed to the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert not failures
    assert client.write_count == 100 + 29 * sum(range(1, 7))


def test_errors_are_those_of_a_local_buffer(client: ReplayClient, buffer: TensorDictReplayBuffer) -> None:
    with pytest.raises(EmptyBufferError):
        client.sample()
    client.extend(stamped_rows(8))
    before = buffer[:].clone()
    wrong = stamped_rows(8)
    wrong["next", "reward"] = wrong["next", "reward"].double()
    with pytest.raises(LayoutError, match=r"next\.reward"):
        client.extend(wrong)
    with pytest.raises(LayoutError, match="extra"):
        client.extend(stamped_rows(2).set("more", torch.zeros(2)))
    with pytest.raises(IndexError):
        client[99]
    assert (buffer[:] == before).all()
    assert client.write_count == 8
    assert client.sample().shape == (8,)


def test_a_dense_batch_into_a_list_goes_the_same_way() -> None:
    buffer = ReplayBuffer(storage=ListStorage(5), batch_size=2)
    with connected(Dispatch(buffer).serve) as pair, ReplayClient(ADDRESS, pair.channel()) as client:
        client.extend(torch.arange(3))
        assert client.sample(2).shape == (2,)


def test_a_wrong_token_opens_nothing(pair: Pair, buffer: TensorDictReplayBuffer) -> None:
    show_token(pair.link, bytes(len(pair.token)), TIMEOUT_S)
    channel = TensorChannel(pair.link, "the service")
    with pytest.raises(ServiceUnavailableError):
        channel.call(Message(Verb.LENGTH), TIMEOUT_S)
    pair.thread.join(TIMEOUT_S)
    assert not pair.thread.is_alive()
    assert len(buffer) == 0


def test_garbage_after_the_token_ends_only_this_conversation(pair: Pair) -> None:
    show_token(pair.link, pair.token, TIMEOUT_S)
    pair.link.send(np.full(256, 171, np.uint8), 0, STANDING_BYTES, TIMEOUT_S)
    pair.thread.join(TIMEOUT_S)
    assert not pair.thread.is_alive()


def test_a_call_past_its_timeout_says_so_and_breaks_the_pair() -> None:
    released = threading.Event()

    def slow(frame: Any, objects: Any = None, **settings: Any) -> Any:
        released.wait(TIMEOUT_S)
        return Dispatch(TensorDictReplayBuffer(storage=LazyTensorStorage(4))).serve(frame, objects, **settings)

    with connected(slow) as pair:
        channel = pair.channel()
        with pytest.raises(ReplayTimeoutError, match="the service"):
            channel.call(Message(Verb.LENGTH), 0.05)
        assert channel.broken
        with pytest.raises(ReplayTimeoutError):
            channel.call(Message(Verb.LENGTH), 0.05)
        released.set()


def test_a_service_that_ends_fails_what_is_in_flight() -> None:
    class GoneError(ReplayError):
        pass

    sent = threading.Event()

    def gone(frame: Any, objects: Any = None, **settings: Any) -> Any:
        sent.wait(TIMEOUT_S)
        raise GoneError

    with connected(gone) as pair:
        channel = pair.channel()
        waiting = [channel.submit(Message(Verb.LENGTH), TIMEOUT_S) for _ in range(3)]
        sent.set()
        for pending in waiting:
            with pytest.raises(ServiceUnavailableError, match="the service"):
                pending.result(TIMEOUT_S)


def test_a_closed_channel_refuses_calls(pair: Pair) -> None:
    channel = pair.channel()
    assert channel.call(Message(Verb.LENGTH), TIMEOUT_S).argument(0) == 0
    channel.close()
    channel.close()
    with pytest.raises(ClosedError):
        channel.call(Message(Verb.LENGTH), TIMEOUT_S)
    pair.thread.join(TIMEOUT_S)
    assert not pair.thread.is_alive()


def test_a_reply_of_objects_is_refused_by_name() -> None:
    buffer = ReplayBuffer(storage=ListStorage(5), batch_size=2)
    buffer.extend(["a", "b"])
    with connected(Dispatch(buffer).serve) as pair, ReplayClient(ADDRESS, pair.channel()) as client:
        with pytest.raises(TransportUnavailableError):
            client.sample()
        assert len(client) == 2
