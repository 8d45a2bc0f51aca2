"""The handle on an episodic buffer in the same process, and the lists that belong together."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients.conversing import Conversing
from clients.episodic_handle import EpisodicClient
from clients.handle import ReplayClient
from clients.saving import Saving
from replay_service.episodic.facts import StepFacts
from replay_service.records import ServiceAddress
from replay_service.service.step_dispatch import StepDispatch
from replay_service.wire.inproc import InprocChannel
from replay_service.wire.verbs import RECORD_VERBS, STEP_VERBS, Verb
from tests.contracts.episodic_handle import EpisodicHandleContract, Recipe, prioritized, vector
from tests.episodic.steps import rows

CALLS = {
    Verb.LENGTH: "__len__",
    Verb.WRITE_COUNT: "write_count",
    Verb.STATS: "stats",
    Verb.CLOSE: "close",
    Verb.ADD_STEPS: "add",
    Verb.SAMPLE_STEPS: "sample",
    Verb.GET_STEPS: "__getitem__",
    Verb.GET_ENTRY: "get",
    Verb.SAMPLE_INDICES: "sample_indices",
    Verb.PREVIOUS: "prev",
    Verb.FOLLOWING: "next",
    Verb.UNFINISHED: "unfinished_index",
    Verb.COLUMN: "column",
    Verb.SET_COLUMN: "set_array_at_key",
    Verb.HAS_NULL: "hasnull",
    Verb.EPISODIC_RETURN: "episodic_return",
    Verb.UPDATE_WEIGHT: "update_weight",
    Verb.GET_WEIGHT: "get_weight",
    Verb.SET_BETA: "set_beta",
    Verb.RESET: "reset",
    Verb.END_EPISODES: "end_episodes",
    Verb.DUMPS: "dumps",
    Verb.LOADS: "loads",
}


def handle_on(buffer: Any) -> EpisodicClient:
    dispatch = StepDispatch(buffer)
    address = ServiceAddress("near", "tests", None, "auto")
    return EpisodicClient(address, StepFacts(**dispatch.describe()["steps"]), InprocChannel(dispatch.serve))


class TestInprocHandle(EpisodicHandleContract):
    @contextmanager
    def hosted(self, recipe: Recipe) -> Iterator[EpisodicClient]:
        with handle_on(recipe()) as client:
            yield client


def test_verbs_dispatch_and_handle_are_the_same_list() -> None:
    assert set(CALLS) == STEP_VERBS == StepDispatch(vector()).verbs
    assert set(Verb) == RECORD_VERBS | STEP_VERBS
    members = {**vars(Saving), **vars(Conversing), **vars(EpisodicClient)}
    own = {name for name, value in members.items() if callable(value) or isinstance(value, property)}
    rest = {"submit_add", "submit_sample", "prefetch", "maxsize", "buffer_num", "stack_num", "address", "closed"}
    public = {name for name in CALLS.values() if not name.startswith("_")}
    assert {name for name in own if not name.startswith("_")} == rest | public


def test_every_call_of_a_handle_that_waits_takes_a_timeout() -> None:
    client = handle_on(prioritized())
    for name in set(CALLS.values()) - {"__getitem__", "__len__", "write_count", "close"}:
        assert inspect.signature(getattr(client, name)).parameters["timeout"].default is None, name


def test_a_local_buffer_has_every_call_of_a_handle() -> None:
    buffer = prioritized()
    for name in (*CALLS.values(), "maxsize", "buffer_num", "stack_num", "returns_in_sample"):
        assert hasattr(buffer, name), name


def test_every_call_is_one_round_trip() -> None:
    asked: list[int] = []
    buffer = prioritized()
    dispatch = StepDispatch(buffer)

    def serve(frame: Any, objects: Any) -> Any:
        asked.append(frame.size)
        return dispatch.serve(frame, objects)

    facts = StepFacts(**dispatch.describe()["steps"])
    client = EpisodicClient(ServiceAddress("near", "tests", None, "auto"), facts, InprocChannel(serve))
    calls: list[Any] = [
        lambda: client.add(rows([1, 2])),
        lambda: client.submit_add(rows([3, 4]), [1, 0]).result(),
        lambda: client.sample(4, n_step=3, gamma=0.9),
        lambda: client.sample_indices(4),
        lambda: client[[0, 1]],
        lambda: client.get([0, 1], "obs", stack_num=2),
        lambda: client.get([0, 1], "nothing", 3),
        lambda: client.prev([0, 1]),
        lambda: client.next([0, 1]),
        client.unfinished_index,
        lambda: client.update_weight([0, 1], [1.0, 2.0]),
        lambda: client.get_weight([0, 1]),
        lambda: client.set_beta(0.5),
        lambda: client.column("rew"),
        lambda: client.set_array_at_key(np.ones(2), "ret", index=[0, 1]),
        client.hasnull,
        lambda: client.episodic_return(None, np.ones(4), np.ones(4)),
        client.end_episodes,
        lambda: client.reset(),
        lambda: len(client),
    ]
    for number, call in enumerate(calls):
        call()
        assert len(asked) == number + 1
    assert (client.maxsize, client.buffer_num) == (8, 2)
    assert len(asked) == len(calls)


def test_other_calls_go_on_while_it_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer, may_end = vector(), threading.Event()
    real = buffer.dumps

    def slow(path: str) -> Any:
        assert may_end.wait(30)
        return real(path)

    monkeypatch.setattr(buffer, "dumps", slow)
    with handle_on(buffer) as client:
        saver = threading.Thread(target=lambda: client.dumps(tmp_path / "c"))
        saver.start()
        client.add(rows([1, 2]))
        assert len(client) == 2
        assert not (tmp_path / "c").exists()
        may_end.set()
        saver.join()
        client.reset()
        client.loads(tmp_path / "c")
        assert client[:].obs.tolist() == [1, 2]


def test_parameters_are_those_of_the_local_calls() -> None:
    client, buffer = handle_on(prioritized()), prioritized()
    for name in set(CALLS.values()) - {"__getitem__", "__len__", "write_count", "close", "stats"}:
        remote = [name for name in inspect.signature(getattr(client, name)).parameters if name != "timeout"]
        here = [name for name in inspect.signature(getattr(buffer, name)).parameters if name != "timeout"]
        assert remote == here, name


@pytest.mark.parametrize("call", ["extend", "sample", "__len__"])
def test_the_wrong_kind_of_handle_is_told_so(call: str) -> None:
    dispatch = StepDispatch(vector())
    records = ReplayClient(ServiceAddress("near", "tests", 2, "auto"), InprocChannel(dispatch.serve))
    if call == "__len__":
        assert len(records) == 0
        return
    with pytest.raises(TypeError, match="its own handle"):
        records.sample() if call == "sample" else records.query()


def test_a_column_as_an_attribute_says_which_calls_fetch_it() -> None:
    with handle_on(vector()) as client:
        assert not hasattr(client, "rew")
        with pytest.raises(AttributeError, match=r"rew is with the service: column\('rew'\).*get\(index, 'rew'\)"):
            _ = client.rew
        with pytest.raises(AttributeError, match="save_hdf5 is the owner's"):
            _ = client.save_hdf5
        with pytest.raises(AttributeError, match="no attribute 'reward'"):
            _ = client.reward
