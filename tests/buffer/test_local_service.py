"""The life of a local buffer, as code written for a hosted one sees it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from replay_service import LazyTensorStorage, ReplayBuffer
from replay_service.buffer.local_service import finished
from replay_service.episodic import VectorReplayBuffer


def test_a_local_buffer_is_its_own_handle() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(4), service_backend="direct", transport="auto")
    assert buffer.client() is buffer
    assert buffer.start() is buffer
    assert (buffer.initialized, buffer.is_alive(), buffer.service_backend) == (True, True, "direct")


def test_nothing_stops_it() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(4), batch_size=2)
    buffer.extend(torch.arange(3))
    buffer.client().close()
    buffer.shutdown()
    buffer.shutdown(timeout=1.0)
    assert buffer.sample().shape == (2,)


@pytest.mark.parametrize("buffer", [ReplayBuffer(storage=LazyTensorStorage(4)), VectorReplayBuffer(4, 2)])
def test_it_can_be_left_as_an_owner_can(buffer: Any) -> None:
    with buffer as own, own.client() as handle:
        assert handle is own is buffer
    with pytest.raises(KeyError), buffer:
        raise KeyError
    assert len(buffer) == 0


def test_finished_futures() -> None:
    future = finished(divmod, 7, 2)
    assert future.done()
    assert future.result(timeout=0) == (3, 1)
    failed = finished(divmod, 7, 0)
    assert failed.done()
    with pytest.raises(ZeroDivisionError):
        failed.result()


def test_what_ends_the_program_is_not_kept() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finished(stop)
