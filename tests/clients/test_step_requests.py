"""What is wrong is refused through a handle as it is here: the same error, and nothing is other than before."""

from __future__ import annotations

from typing import Any

import pytest

from clients.episodic_handle import EpisodicClient
from replay_service.episodic.facts import StepFacts
from replay_service.records import ServiceAddress
from replay_service.service.step_dispatch import StepDispatch
from replay_service.wire.inproc import InprocChannel
from tests.episodic.every_class import told
from tests.episodic.test_refusals import CALLS, made

OWNERS = ("update", "load", "batch", "slots")
"""Calls that no handle has."""


def handle_on(buffer: Any) -> EpisodicClient:
    dispatch = StepDispatch(buffer)
    facts = StepFacts(**dispatch.describe()["steps"])
    return EpisodicClient(ServiceAddress("near", "tests", None, "auto"), facts, InprocChannel(dispatch.serve))


@pytest.mark.parametrize("name", [name for name in CALLS if name.split()[0] not in OWNERS])
def test_the_same_is_refused(name: str) -> None:
    call, message = CALLS[name]
    buffer = made()
    handle = handle_on(buffer)
    before = told(buffer.state_dict())
    with pytest.raises((TypeError, ValueError, IndexError, KeyError), match=message):
        call(handle)
    assert told(buffer.state_dict()) == before


def test_numbers_that_no_header_holds() -> None:
    handle = handle_on(made())
    with pytest.raises(ValueError, match=r"batch_size .* must be at most"):
        handle.sample(10**30)
    assert handle.sample(-(10**30))[1].size == 0
    assert handle.sample(2, n_step=10**30)[0].n_step.rew.shape == (2,)
