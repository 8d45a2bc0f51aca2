"""Which way a handle's calls go, seen from the handle alone."""

from __future__ import annotations

import os
from typing import Any

import pytest

from clients.channels import Channels
from replay_service import LazyTensorStorage, TensorDictReplayBuffer
from replay_service.errors import ClosedError
from replay_service.records import ServiceAddress
from replay_service.service.dispatch import Dispatch
from replay_service.wire.inproc import InprocChannel
from replay_service.wire.message import Message
from replay_service.wire.verbs import Verb

ADDRESS = ServiceAddress("near", "tests", 4)


class Closing(InprocChannel):
    """Counts how often it is closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1
        super().close()


@pytest.fixture
def channel() -> Closing:
    return Closing(Dispatch(TensorDictReplayBuffer(storage=LazyTensorStorage(4))).serve)


def test_a_given_channel_carries_everything_until_it_is_closed(channel: Closing) -> None:
    channels = Channels(ADDRESS, channel)
    assert channels.call(Message(Verb.LENGTH), 1.0).argument(0) == 0
    assert channels.submit(Message(Verb.LENGTH), 1.0).result(1.0).argument(0) == 0
    channels.close()
    channels.close()
    assert channel.closed == 1
    with pytest.raises(ClosedError, match="handle"):
        channels.call(Message(Verb.LENGTH), 1.0)
    with pytest.raises(ClosedError, match="handle"):
        channels.submit(Message(Verb.LENGTH), 1.0)


def test_a_forked_copy_leaves_its_parents_channels_open(channel: Closing, monkeypatch: pytest.MonkeyPatch) -> None:
    channels = Channels(ADDRESS, channel)
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    channels.close()
    assert channel.closed == 0


def test_routes_are_empty_before_the_first_call(channel: Closing) -> None:
    routes: dict[str, Any] = dict(Channels(ADDRESS, channel).routes())
    assert routes == {}
