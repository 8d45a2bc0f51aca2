"""The handle within one process, and that its calls are those of the verbs and of a local buffer."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

from clients import ReplayClient
from clients.conversing import Conversing
from clients.saving import Saving
from replay_service import ReplayBuffer
from replay_service.records import ServiceAddress
from replay_service.service.dispatch import Dispatch
from replay_service.wire.inproc import InprocChannel
from replay_service.wire.verbs import RECORD_VERBS, Verb
from tests.contracts.handle import HandleContract
from tests.contracts.handle_recipes import Recipe, tensordicts

CALLS = {
    Verb.EXTEND: "extend",
    Verb.ADD: "add",
    Verb.SAMPLE: "sample",
    Verb.UPDATE_PRIORITY: "update_priority",
    Verb.UPDATE_IF_PRESENT: "update_if_present",
    Verb.GET: "__getitem__",
    Verb.SET: "__setitem__",
    Verb.READ_ALL: "read_all_in_order",
    Verb.WRITE_ALL: "write_all",
    Verb.QUERY: "query",
    Verb.LENGTH: "__len__",
    Verb.WRITE_COUNT: "write_count",
    Verb.STATS: "stats",
    Verb.CLOSE: "close",
    Verb.DUMPS: "dumps",
    Verb.LOADS: "loads",
}


def handle_on(buffer: ReplayBuffer) -> ReplayClient:
    key = getattr(buffer, "priority_key", "td_error")
    address = ServiceAddress("near", "tests", buffer.batch_size, "auto", priority_key=key)
    return ReplayClient(address, InprocChannel(Dispatch(buffer).serve))


class TestInprocHandle(HandleContract):
    @contextmanager
    def hosted(self, recipe: Recipe) -> Iterator[ReplayClient]:
        with handle_on(recipe()) as client:
            yield client


def test_verbs_dispatch_and_handle_are_the_same_list() -> None:
    assert set(CALLS) == RECORD_VERBS == set(Dispatch(tensordicts()).verbs)
    members = {**vars(Saving), **vars(Conversing), **vars(ReplayClient)}
    own = {name for name, value in members.items() if callable(value) or isinstance(value, property)}
    assert set(CALLS.values()) <= own
    rest = {
        "submit_extend",
        "submit_sample",
        "submit_update_if_present",
        "prefetch",
        "update_tensordict_priority",
        "batch_size",
        "address",
        "closed",
    }
    assert {name for name in own if not name.startswith("_")} == rest | {
        name for name in CALLS.values() if not name.startswith("_")
    }


def test_every_call_of_a_handle_that_waits_takes_a_timeout() -> None:
    for name in set(CALLS.values()) - {"__getitem__", "__setitem__", "__len__", "write_count", "close"}:
        parameters = inspect.signature(getattr(ReplayClient, name)).parameters
        assert parameters["timeout"].default is None, name


def test_a_local_buffer_has_every_call_of_a_handle() -> None:
    buffer = tensordicts()
    for name in (
        *CALLS.values(),
        "submit_extend",
        "submit_sample",
        "submit_update_if_present",
        "update_tensordict_priority",
        "batch_size",
    ):
        assert hasattr(buffer, name), name
