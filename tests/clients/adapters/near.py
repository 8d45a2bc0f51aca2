"""Handles in this process, as the adapters' tests use them."""

from __future__ import annotations

from typing import Any

from clients.episodic_handle import EpisodicClient
from clients.handle import ReplayClient
from replay_service.episodic.facts import StepFacts
from replay_service.records import ServiceAddress
from replay_service.service.dispatch import Dispatch
from replay_service.service.step_dispatch import StepDispatch
from replay_service.wire.inproc import InprocChannel

ADDRESS = ServiceAddress("near", "tests", 8, "auto")


def rows_handle(buffer: Any) -> ReplayClient:
    """A handle on a buffer of TensorDicts."""
    return ReplayClient(ADDRESS, InprocChannel(Dispatch(buffer).serve))


def steps_handle(buffer: Any) -> EpisodicClient:
    """A handle on an episodic buffer."""
    dispatch = StepDispatch(buffer)
    return EpisodicClient(ADDRESS, StepFacts(**dispatch.describe()["steps"]), InprocChannel(dispatch.serve))
