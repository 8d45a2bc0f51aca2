"""The channel within one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from replay_service.wire.inproc import InprocChannel
from tests.contracts.channel import ChannelContract, Recipe


class TestInprocChannel(ChannelContract):
    @contextmanager
    def connected(self, recipe: Recipe) -> Iterator[InprocChannel]:
        yield InprocChannel(recipe().serve)
