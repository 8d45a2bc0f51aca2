"""Ctrl-C as a request."""

from __future__ import annotations

import signal

import pytest

from deploy.interruption import Interruption


def test_the_first_is_noted_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interruption() as interruption:
        signal.raise_signal(signal.SIGINT)
        assert interruption.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_one_that_interrupts_at_once_is_noted_too() -> None:
    with Interruption(at_once=True) as interruption:
        assert not interruption.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert interruption.requested
