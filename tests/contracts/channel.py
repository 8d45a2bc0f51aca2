"""What every channel keeps to; a test class of an implementation inherits `ChannelContract` and makes one."""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
import torch

from clients.decoding import decode_records, decode_sample
from clients.requests import extend_request, query_request, records_request, sample_request
from clients.saving import checkpoint_request
from replay_service import LazyTensorStorage, ListStorage, ReplayBuffer, TensorDictReplayBuffer
from replay_service.buffer.writers.round_robin import TensorDictRoundRobinWriter
from replay_service.errors import ClosedError, EmptyBufferError, LayoutError, TransportUnavailableError
from replay_service.service.dispatch import Dispatch
from replay_service.structure import row_of
from replay_service.wire.channel import Channel
from replay_service.wire.indices import encode_index
from replay_service.wire.message import Message, compose, spec_static, static_text, text_of
from replay_service.wire.verbs import RECORD_VERBS, Verb
from tests.rows import assert_rows_are_whole, stamped_rows

Recipe = Callable[[], Dispatch]
TIMEOUT_S = 30.0
MOST_LAYOUTS = 8


def columns(most_layouts: int = MOST_LAYOUTS) -> Dispatch:
    """Serves a buffer of TensorDicts; forgets layouts early."""
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100), writer=TensorDictRoundRobinWriter(track_generations=True), batch_size=8
    )
    return Dispatch(buffer, most_layouts=most_layouts)


def objects() -> Dispatch:
    """Serves a buffer of anything."""
    return Dispatch(ReplayBuffer(storage=ListStorage(10), batch_size=2))


class ChannelContract(ABC):
    """Every verb arrives and is answered, in order; errors keep their class; layouts may be forgotten."""

    @abstractmethod
    def connected(self, recipe: Recipe) -> AbstractContextManager[Channel]:
        """A channel to a service made by `recipe`, wherever that runs."""

    @pytest.fixture
    def channel(self) -> Iterator[Channel]:
        with self.connected(columns) as channel:
            yield channel

    def test_says_what_it_is(self, channel: Channel) -> None:
        assert channel.kind in ("inproc", "ray", "distributed")
        assert channel.carries_objects == (channel.kind != "distributed")

    def test_every_verb(self, channel: Channel, tmp_path: Path) -> None:
        def call(message: Message) -> Message:
            used.add(message.verb)
            reply = channel.call(message, TIMEOUT_S)
            assert reply.verb is message.verb
            return reply

        used: set[Verb] = set()
        data = stamped_rows(20)
        assert call(extend_request(data, None)).tensor("index").tolist() == list(range(20))
        assert call(records_request(Verb.ADD, row_of(stamped_rows(1, stamp=20)[0]))).tensor("index").tolist() == [20]
        assert call(Message(Verb.LENGTH)).argument(0) == 21
        assert call(Message(Verb.WRITE_COUNT)).argument(0) == 21

        batch = decode_sample(call(sample_request(None, False)), False)
        assert batch.shape == (8,)
        assert_rows_are_whole(batch)
        arguments, entries = encode_index(slice(2, 5))
        assert decode_records(call(compose(Verb.GET, entries, arguments=arguments)))["action"].tolist() == [2, 3, 4]
        assert (decode_records(call(Message(Verb.READ_ALL, arguments=(1, 20)))) == data).all()

        rows = row_of(stamped_rows(1, stamp=50)[0])
        values = [(("data", *key), tensor) for key, tensor in zip(rows.keys, rows.tensors, strict=True)]
        index, _ = encode_index(3)
        call(compose(Verb.SET, values, static=spec_static(rows.spec), arguments=(*index, 0, 0, 0, 1)))
        assert decode_records(call(compose(Verb.GET, [], arguments=index)))["action"].item() == 50
        call(records_request(Verb.WRITE_ALL, extend_rows(stamped_rows(2, stamp=60)), (1, 2)))
        assert decode_records(call(Message(Verb.READ_ALL, arguments=(1, 2))))["action"].tolist() == [60, 61]

        slots = (("index",), torch.tensor([0, 1]))
        priority = call(compose(Verb.UPDATE_PRIORITY, [slots, (("priority",), torch.ones(2))]))
        assert priority.tensor("updated").tolist() == [False, False]  # this sampler keeps none
        patch = [(("generation",), torch.tensor([0, 7])), (("patch", "action"), torch.tensor([70, 71]))]
        static = static_text({"spec": ["dict", [["action", "t"]]]})
        late = call(compose(Verb.UPDATE_IF_PRESENT, [slots, *patch], static=static))
        assert late.tensor("updated").tolist() == [True, False]
        assert decode_records(call(Message(Verb.READ_ALL, arguments=(1, 2))))["action"].tolist() == [70, 61]

        found = call(query_request(None, "action"))
        assert int(found.tensor("lengths").sum()) == 21
        verbs = json.loads(text_of(call(Message(Verb.STATS))))["service"]["verbs"]
        assert verbs["extend"]["calls"] == 1
        assert verbs["extend"]["rows"] == 20
        for verb in (Verb.DUMPS, Verb.LOADS):
            told = json.loads(text_of(call(checkpoint_request(verb, {"path": str(tmp_path / "saved")}))))
            while "receipt" not in told:
                told = json.loads(text_of(call(checkpoint_request(verb, {"ticket": told["ticket"]}))))
        call(Message(Verb.CLOSE))
        assert used == RECORD_VERBS

    def test_batches_of_any_size_in_turn(self, channel: Channel) -> None:
        channel.call(extend_request(stamped_rows(100), None), TIMEOUT_S)
        for size in (256, 7, 1, 300):
            batch = decode_sample(channel.call(sample_request(size, False), TIMEOUT_S), False)
            assert batch.shape == (size,)
            assert_rows_are_whole(batch)
        for count in (1, 64, 0, 5):
            written = channel.call(extend_request(stamped_rows(count), None), TIMEOUT_S)
            assert written.tensor("index").shape == (count,)

    def test_several_in_flight_are_answered_in_order(self, channel: Channel) -> None:
        waiting = [channel.submit(extend_request(stamped_rows(3), None), TIMEOUT_S) for _ in range(30)]
        slots = torch.cat([pending.result(TIMEOUT_S).tensor("index") for pending in waiting])
        assert slots.tolist() == [slot % 100 for slot in range(90)]
        assert all(pending.done() and pending.settled for pending in waiting)

    def test_a_reply_can_be_asked_for_twice(self, channel: Channel) -> None:
        pending = channel.submit(Message(Verb.LENGTH), TIMEOUT_S)
        assert pending.result(TIMEOUT_S) is pending.result(TIMEOUT_S)

    def test_a_submitted_request_that_fails_has_an_error_reply(self, channel: Channel) -> None:
        assert channel.submit(sample_request(None, False), TIMEOUT_S).result(TIMEOUT_S).status != 0
        assert channel.call(Message(Verb.LENGTH), TIMEOUT_S).argument(0) == 0

    def test_errors_keep_their_class_and_their_words(self, channel: Channel) -> None:
        with pytest.raises(EmptyBufferError, match="extend it first"):
            channel.call(sample_request(None, False), TIMEOUT_S)
        channel.call(extend_request(stamped_rows(4), None), TIMEOUT_S)
        with pytest.raises(LayoutError, match=r"next\.reward"):
            channel.call(extend_request(stamped_rows(2).exclude(("next", "reward")), None), TIMEOUT_S)
        with pytest.raises(IndexError, match="99"):
            channel.call(compose(Verb.GET, [], arguments=encode_index(99)[0]), TIMEOUT_S)
        with pytest.raises(KeyError, match="priority"):
            channel.call(compose(Verb.UPDATE_PRIORITY, [(("index",), torch.tensor([0]))]), TIMEOUT_S)
        assert channel.call(Message(Verb.LENGTH), TIMEOUT_S).argument(0) == 4

    def test_a_service_that_forgets_layouts_is_told_again(self, channel: Channel) -> None:
        channel.call(extend_request(stamped_rows(4), None), TIMEOUT_S)
        for number in range(2 * MOST_LAYOUTS):
            entries, arguments = [(("index",), torch.zeros(1, dtype=torch.int64))], (3,)
            channel.call(compose(Verb.GET, entries, static=f'{{"n":{number}}}', arguments=arguments), TIMEOUT_S)
        assert channel.call(extend_request(stamped_rows(4), None), TIMEOUT_S).tensor("index").tolist() == [4, 5, 6, 7]
        for number in range(2 * MOST_LAYOUTS):
            waiting = [
                channel.submit(compose(Verb.GET, entries, static=f'{{"n":{number}}}', arguments=(3,)), TIMEOUT_S),
                channel.submit(extend_request(stamped_rows(1), None), TIMEOUT_S),
            ]
            assert [pending.result(TIMEOUT_S).status for pending in waiting] == [0, 0]
        assert channel.call(Message(Verb.WRITE_COUNT), TIMEOUT_S).argument(0) == 8 + 2 * MOST_LAYOUTS

    def test_reply_layouts_change_with_the_request(self, channel: Channel) -> None:
        channel.call(extend_request(stamped_rows(4), None), TIMEOUT_S)
        for _ in range(3):
            for key in ("action", "observation", ("next", "reward")):
                arguments, entries = encode_index(key)
                found = decode_records(channel.call(compose(Verb.GET, entries, arguments=arguments), TIMEOUT_S))
                assert torch.equal(found, stamped_rows(4)[key])

    def test_what_was_sent_can_be_changed_at_once(self, channel: Channel) -> None:
        data = stamped_rows(50)
        pending = channel.submit(extend_request(data, None), TIMEOUT_S)
        data["action"].zero_()
        pending.result(TIMEOUT_S)
        assert_rows_are_whole(decode_records(channel.call(Message(Verb.READ_ALL), TIMEOUT_S)))

    def test_what_was_received_is_the_callers_own(self, channel: Channel) -> None:
        channel.call(extend_request(stamped_rows(20), None), TIMEOUT_S)
        kept = [decode_records(channel.call(Message(Verb.READ_ALL), TIMEOUT_S)) for _ in range(8)]
        for number, data in enumerate(kept):
            for tensor in data.values(True, True):
                assert tensor.is_contiguous()
                tensor.fill_(number % 2)
        for number, data in enumerate(kept):
            assert all((tensor == number % 2).all() for tensor in data.values(True, True))
        assert_rows_are_whole(decode_records(channel.call(Message(Verb.READ_ALL), TIMEOUT_S)))

    def test_threads_share_a_channel(self, channel: Channel) -> None:
        channel.call(extend_request(stamped_rows(100), None), TIMEOUT_S)
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for size in range(1, 12):
                    batch = decode_sample(channel.call(sample_request(size + number, False), TIMEOUT_S), False)
                    assert batch.shape == (size + number,)
                    assert_rows_are_whole(batch)
                    channel.submit(extend_request(stamped_rows(number + 1), None), TIMEOUT_S)
            except BaseException as error:  # handed to the main thread
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert channel.call(Message(Verb.WRITE_COUNT), TIMEOUT_S).argument(0) == 100 + 11 * sum(range(1, 7))

    def test_objects_travel_where_the_channel_carries_them(self) -> None:
        with self.connected(objects) as channel:
            if not channel.carries_objects:
                channel.call(extend_request(torch.arange(3), None), TIMEOUT_S)
                assert decode_sample(channel.call(sample_request(2, False), TIMEOUT_S), False).shape == (2,)
                return
            records = ["a", {"x": torch.arange(2)}, None, (1, b"b")]
            assert channel.call(extend_request(records, None), TIMEOUT_S).tensor("index").tolist() == [0, 1, 2, 3]
            found = decode_records(channel.call(Message(Verb.READ_ALL), TIMEOUT_S))
            assert [found[0], found[2], found[3]] == ["a", None, (1, b"b")]
            assert found[1]["x"].tolist() == [0, 1]
            found[1]["x"].zero_()
            again = decode_records(channel.call(Message(Verb.READ_ALL), TIMEOUT_S))
            assert again[1]["x"].tolist() == [0, 1]
            data, info = decode_sample(channel.call(sample_request(5, True), TIMEOUT_S), True)
            assert len(data) == 5
            assert info["index"].shape == (5,)

    def test_a_reply_of_objects_is_refused_where_none_travel(self) -> None:
        ragged = partial(filled_objects, [torch.zeros(1), torch.zeros(2)])
        with self.connected(ragged) as channel:
            if channel.carries_objects:
                assert len(decode_records(channel.call(Message(Verb.READ_ALL), TIMEOUT_S))) == 2
                return
            with pytest.raises(TransportUnavailableError):
                channel.call(Message(Verb.READ_ALL), TIMEOUT_S)
            assert channel.call(Message(Verb.LENGTH), TIMEOUT_S).argument(0) == 2

    def test_a_closed_channel_refuses_calls(self, channel: Channel) -> None:
        channel.close()
        channel.close()
        with pytest.raises(ClosedError):
            channel.call(Message(Verb.LENGTH), TIMEOUT_S)
        with pytest.raises(ClosedError):
            channel.submit(Message(Verb.LENGTH), TIMEOUT_S)


def extend_rows(data: object) -> object:
    return extend_request(data, None).records()


def filled_objects(records: list[object]) -> Dispatch:
    dispatch = objects()
    dispatch.buffer.extend(records)
    return dispatch
