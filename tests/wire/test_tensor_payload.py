"""Payloads on groups of their own: the logic of NCCL, with gloo in its place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from clients.handle import ReplayClient
from replay_service import LazyTensorStorage, TensorDictReplayBuffer, TensorDictRoundRobinWriter
from replay_service.errors import EmptyBufferError, LayoutError, ReplayTimeoutError, TransportUnavailableError
from replay_service.records import ServiceAddress
from replay_service.service.dispatch import Dispatch
from replay_service.wire.message import Message
from replay_service.wire.packing import begin_apart, known_layouts, pack_apart, read_header, unpack
from replay_service.wire.rendezvous import CLIENT_RANK, Mailbox, MailboxStore, payload_path
from replay_service.wire.tensor_payload import PayloadPath
from replay_service.wire.verbs import Verb
from tests.rows import assert_rows_are_whole, stamped_rows
from tests.wire.pair import TIMEOUT_S, connected

ADDRESS = ServiceAddress("tests", "tests", 8, "distributed")


@pytest.fixture
def buffer() -> TensorDictReplayBuffer:
    writer = TensorDictRoundRobinWriter(track_generations=True)
    return TensorDictReplayBuffer(storage=LazyTensorStorage(1000), batch_size=8, writer=writer)


@pytest.fixture
def client(buffer: TensorDictReplayBuffer) -> Iterator[ReplayClient]:
    with connected(Dispatch(buffer).serve, apart=True) as pair, ReplayClient(ADDRESS, pair.channel()) as made:
        yield made


def take(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


def test_records_come_and_go_whole(client: ReplayClient, buffer: TensorDictReplayBuffer) -> None:
    assert client.extend(stamped_rows(300)).tolist() == list(range(300))
    for size in (256, 7, 1, 300):
        batch = client.sample(size)
        assert batch.shape == (size,)
        assert_rows_are_whole(batch.exclude("index", "index_generation"))
    assert_rows_are_whole(buffer[:])
    assert (client[3] == buffer[3]).all()
    assert client.read_all_in_order().shape == (300,)
    client[0:2] = client[4:6]
    assert (buffer[0:2] == buffer[4:6]).all()


def test_small_answers_stay_with_their_headers(client: ReplayClient) -> None:
    client.extend(stamped_rows(20))
    batch = client.sample(5)
    result = client.update_if_present(
        index=batch["index"], generation=batch["index_generation"], patch={"action": batch["action"]}
    )
    assert result.updated_count == 5
    assert client.stats()["size"] == 20
    assert len(client) == 20


def test_errors_travel_as_ever(client: ReplayClient) -> None:
    with pytest.raises(EmptyBufferError):
        client.sample()
    client.extend(stamped_rows(4))
    with pytest.raises(LayoutError, match="action"):
        client.extend(stamped_rows(4).exclude("action"))
    assert len(client) == 4


def test_several_in_flight_both_ways(client: ReplayClient) -> None:
    client.extend(stamped_rows(50))
    extending = [client.submit_extend(stamped_rows(2, stamp=100 + 2 * number)) for number in range(10)]
    sampling = [client.submit_sample(20) for _ in range(10)]
    for future in sampling:
        assert_rows_are_whole(future.result().exclude("index", "index_generation"))
    assert sum(len(future.result()) for future in extending) == 20
    assert client.write_count == 70


def test_the_header_says_that_the_payload_is_elsewhere() -> None:
    from clients.requests import extend_request

    request = extend_request(stamped_rows(3), None)
    frame = pack_apart(request, lambda size: take(size).numpy(), take, with_layout=True)
    header = read_header(frame)
    assert header.apart
    assert header.verb is Verb.EXTEND
    assert frame.size == header.frame_bytes < header.payload_bytes + header.layout_bytes
    read = unpack(frame, known_layouts(), request.flat)
    for sent, got in zip(request.tensors, read.tensors, strict=True):
        assert torch.equal(sent, got)
    with pytest.raises(Exception, match="its own channel"):
        unpack(frame, known_layouts())


def test_messages_without_records_stay_in_one_piece() -> None:
    message = Message(Verb.LENGTH)
    frame, tensors = begin_apart(message, lambda size: take(size).numpy(), take, with_layout=False)
    assert tensors == []
    assert message.flat is None
    assert not read_header(frame).apart


def test_a_payload_that_does_not_come_is_a_timeout() -> None:
    with connected(lambda *_, **__: None, apart=True) as pair:
        path = pair.link.payload
        assert isinstance(path, PayloadPath)
        with pytest.raises(ReplayTimeoutError):
            path.receive(64, 0.05)


def test_nccl_without_cuda_says_what_is_missing() -> None:
    store = MailboxStore(Mailbox(), TIMEOUT_S)
    assert payload_path(store, CLIENT_RANK, "gloo", TIMEOUT_S) is None
    if not torch.cuda.is_available():
        with pytest.raises(TransportUnavailableError, match="CUDA"):
            payload_path(store, CLIENT_RANK, "nccl", TIMEOUT_S)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs a CUDA device")
def test_nccl_carries_records_between_devices() -> None:
    from benchmarks.nccl_pair import check

    check(rows=64)
