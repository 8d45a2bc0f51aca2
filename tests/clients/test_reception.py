"""What a handle makes of records that arrive."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict

from clients.reception import Reception
from replay_service import LazyTensorStorage, TensorDictReplayBuffer
from replay_service.buffer.transforming import TransformChain
from replay_service.service.replies import records, sampled
from replay_service.service.telling import Told
from replay_service.sources import SOURCES
from replay_service.transforms import RenameKeys
from replay_service.wire.message import Message
from replay_service.wire.verbs import Verb


class Service:
    """Says what it leaves to its clients, and counts how often it is asked."""

    def __init__(self) -> None:
        self.chain = TransformChain([RenameKeys("x", "y")])
        self.asked = 0

    def __call__(self) -> Any:
        self.asked += 1
        return self.chain


def _reply(left: int) -> Message:
    data = TensorDict({"x": torch.arange(3), "index": torch.arange(3)}, [3])
    return sampled(Verb.SAMPLE, data, {}, True, Told(left=left))


def test_a_request_says_how_much_is_known() -> None:
    reception = Reception(Service())
    assert reception.request(5, True).arguments == (5, 1, 0, 0)
    reception.sample(Message(Verb.SAMPLE, objects=("data", {}), arguments=(0, 77, 12)), False)
    assert reception.request(None, False).arguments == (0, 0, 77, 12)
    reception.sample(Message(Verb.SAMPLE, objects=("data", {}), arguments=(0, 77, 9)), False)  # an older one
    assert reception.request(None, False).arguments == (0, 0, 77, 12)
    reception.sample(Message(Verb.SAMPLE, objects=("data", {}), arguments=(0, 78, 3)), False)  # another service
    assert reception.request(None, False).arguments == (0, 0, 78, 3)


def test_transforms_are_asked_for_when_they_are_new() -> None:
    service = Service()
    reception = Reception(service)
    assert set(reception.sample(_reply(0), False).keys()) == {"x", "index"}
    assert (service.asked, reception.has_transforms) == (0, False)
    for _ in range(3):
        assert set(reception.sample(_reply(1), False).keys()) == {"y", "index"}
    assert (service.asked, reception.has_transforms) == (1, True)
    service.chain.insert(1, lambda data: data[1:])
    data, info = reception.sample(_reply(2), True)
    assert data["y"].tolist() == [1, 2]
    assert info == {}
    assert service.asked == 2


def test_records_by_index_go_through_them_too() -> None:
    reception = Reception(Service())
    reply = records(Verb.GET, TensorDict({"x": torch.arange(3)}, [3]), single=False, left=1)
    assert reception.is_left(reply)
    assert set(reception.records(reply).keys()) == {"y"}
    assert set(reception.records(records(Verb.GET, TensorDict({"x": torch.tensor(1)}), True, 1)).keys()) == {"y"}
    plain = records(Verb.GET, TensorDict({"x": torch.arange(3)}, [3]), single=False)
    assert not reception.is_left(plain)
    assert set(reception.records(plain).keys()) == {"x"}


def test_a_buffer_that_knows_nothing_of_transforms_leaves_none() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(3))
    assert Told.by(Message(Verb.SAMPLE, arguments=(1, 0, 5, 6)), buffer) == Told(5, 6, 0)
    assert Told.by(Message(Verb.SAMPLE), object()) == Told()
    assert Told().news("t") == ([], (0, SOURCES.token, 0))
