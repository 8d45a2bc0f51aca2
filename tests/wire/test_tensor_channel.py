"""The tensor channel keeps to what every channel keeps to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from replay_service.wire.tensor_group import TensorChannel
from tests.contracts.channel import ChannelContract, Recipe
from tests.wire.pair import connected


class TestTensorChannel(ChannelContract):
    @contextmanager
    def connected(self, recipe: Recipe) -> Iterator[TensorChannel]:
        with connected(recipe().serve) as pair:
            channel = pair.channel()
            yield channel
            channel.close()
