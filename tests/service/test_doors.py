"""What a channel that is being opened is told."""

from __future__ import annotations

from typing import Any

import pytest

from replay_service import LazyTensorStorage, ReplayBuffer
from replay_service.service import doors
from replay_service.service.dispatch import Dispatch
from replay_service.service.doors import Doors
from replay_service.wire.rendezvous import CROWDED, NO, YES
from replay_service.wire.yielding import processors


def test_channels_beyond_the_processors_are_told_that_it_is_crowded(
    monkeypatch: pytest.MonkeyPatch, wait_until: Any
) -> None:
    monkeypatch.setattr(doors, "OPEN_TIMEOUT_S", 0.5)
    opened = Doors(Dispatch(ReplayBuffer(storage=LazyTensorStorage(4))).serve, "127.0.0.1")
    numbers = [opened.open()["number"] for _ in range(processors() + 1)]
    assert [opened.look(number, CROWDED) for number in numbers] == [NO] * processors() + [YES]

    def forgotten() -> bool:
        try:
            opened.look(numbers[-1], CROWDED)
        except KeyError:
            return True
        return False

    wait_until(forgotten)
    assert len(opened) == 0
