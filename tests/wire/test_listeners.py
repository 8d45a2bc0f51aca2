"""Listeners that have done their work."""

from __future__ import annotations

import socket
import sys

import pytest

from replay_service import LazyTensorStorage, TensorDictReplayBuffer
from replay_service.service.dispatch import Dispatch
from replay_service.wire.listeners import deafen, listening_ports
from replay_service.wire.message import Message
from replay_service.wire.verbs import Verb
from tests.wire.pair import ADDRESS, TIMEOUT_S, connected

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows which descriptors a process has")


@linux
def test_strangers_leave_a_pair_alone() -> None:
    before = listening_ports(ADDRESS)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4))
    with connected(Dispatch(buffer).serve) as pair:
        channel = pair.channel()
        ports = listening_ports(ADDRESS) - before
        assert ports
        for port in ports:
            for size in (0, 1, 8, 100):
                with socket.create_connection((ADDRESS, port), timeout=TIMEOUT_S) as stranger:
                    stranger.sendall(bytes(range(size)))
                    stranger.settimeout(0.05)
                    with pytest.raises(TimeoutError):
                        stranger.recv(1)  # nobody has accepted it, so nobody answers or hangs up
                assert channel.call(Message(Verb.LENGTH), TIMEOUT_S).argument(0) == 0
        channel.close()


def test_coordinates_without_a_known_address_are_left_alone() -> None:
    assert not deafen(ADDRESS, b"nothing in here")
    assert not deafen("not an address", b"")
    assert not deafen(ADDRESS, socket.inet_aton(ADDRESS))
