"""Results of calls on their way."""

from __future__ import annotations

import pytest
import torch

from clients.futures import Future
from replay_service.errors import EmptyBufferError, ReplayTimeoutError
from replay_service.wire.failures import code_of
from replay_service.wire.message import TEXT, Message
from replay_service.wire.verbs import Verb


class Waiting:
    """A request that the test answers; it keeps the timeouts it was asked with."""

    def __init__(self) -> None:
        self.reply: Message | None = None
        self.asked: list[float] = []

    def result(self, timeout_s: float) -> Message:
        self.asked.append(timeout_s)
        if self.reply is None:
            raise ReplayTimeoutError("not yet")
        return self.reply

    def done(self) -> bool:
        return self.reply is not None

    @property
    def settled(self) -> bool:
        return self.done()


def future_on(pending: Waiting) -> Future[int]:
    return Future(pending, lambda reply: reply.argument(0), 30.0)


def test_a_result_is_decoded_once() -> None:
    pending = Waiting()
    future = future_on(pending)
    assert not future.done()
    with pytest.raises(ReplayTimeoutError):
        future.result(0.5)
    pending.reply = Message(Verb.LENGTH, arguments=(7,))
    assert future.done()
    assert [future.result(), future.result(1.0)] == [7, 7]
    assert pending.asked == [0.5, 30.0]


def test_an_error_is_raised_every_time() -> None:
    pending = Waiting()
    text = torch.frombuffer(bytearray(b"nothing"), dtype=torch.uint8)
    pending.reply = Message(Verb.SAMPLE, TEXT, [text], items=7, status=code_of(EmptyBufferError("")))
    future = future_on(pending)
    for _ in range(2):
        with pytest.raises(EmptyBufferError, match="nothing"):
            future.result()
    assert future.done()


@pytest.mark.parametrize("timeout", [0, -1, True, "1"])
def test_a_timeout_is_a_positive_number(timeout: object) -> None:
    with pytest.raises(ValueError, match="timeout"):
        future_on(Waiting()).result(timeout)  # type: ignore[arg-type]
