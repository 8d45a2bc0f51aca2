"""The actor's class without Ray around it."""

from __future__ import annotations

import inspect
import json
import os
from typing import Any

import pytest

from replay_service import LazyTensorStorage, ListStorage, ReplayBuffer, TensorDictReplayBuffer
from replay_service.arena import Arena
from replay_service.records import ServiceAddress
from replay_service.service import actor as module
from replay_service.service.actor import OWNER_VERBS, ReplayActor
from replay_service.service.calls import OwnerCalls
from replay_service.service.episodic_owner import RayEpisodicBuffer
from replay_service.wire.message import Message, text_of
from replay_service.wire.packing import known_layouts, pack, unpack
from replay_service.wire.ray_objects import readable
from replay_service.wire.verbs import Verb
from tests.rows import stamped_rows


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "node_address", lambda: "127.0.0.1")


def make(recipe: Any) -> ReplayActor:
    return ReplayActor(recipe, ServiceAddress("name", "space", transport="ray", timeout_s=12.0), 1)


def buffer() -> ReplayBuffer:
    return TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4, priority_key=("a", "b"))


def ask(actor: ReplayActor, verb: Verb) -> Message:
    frame = pack(Message(verb), Arena().take, with_layout=False)
    answer = actor.serve(frame.tobytes())
    assert isinstance(answer, bytes)
    return unpack(readable(answer), known_layouts())


def test_it_serves_frames() -> None:
    actor = make(buffer)
    assert ask(actor, Verb.LENGTH).argument(0) == 0
    assert actor.drained()


def test_objects_come_beside_the_frame() -> None:
    actor = make(lambda: ReplayBuffer(storage=ListStorage(3), batch_size=1))
    frame = pack(Message(Verb.EXTEND, arguments=(-1,)), Arena().take, with_layout=False)
    frame.flags.writeable = False  # as Ray hands arrays over
    assert isinstance(actor.serve(frame, (["a", "b"],)), bytes)
    frame = pack(Message(Verb.READ_ALL), Arena().take, with_layout=False)
    reply, objects = actor.serve(frame)
    assert objects == (["a", "b"],)
    assert unpack(readable(reply), known_layouts()).status == 0


def test_it_describes_itself() -> None:
    described = make(buffer).describe()
    assert described["batch_size"] == 4
    assert described["merges_info"]
    assert described["priority_key"] == ("a", "b")
    assert described["columnar"]
    assert described["pid"] == os.getpid()
    assert described["backends"] == []
    assert not make(lambda: ReplayBuffer(storage=ListStorage(3))).describe()["columnar"]


def test_a_buffer_that_cannot_be_built_is_described_as_a_failure() -> None:
    described = make(lambda: ReplayBuffer(storage=ListStorage(0))).describe()
    assert set(described) == {"failure"}
    assert "max_size" in described["failure"][1]


def test_stats_tell_of_process_and_clients() -> None:
    actor = make(buffer)
    actor.open_client("a", "127.0.0.1", os.getpid())
    actor.open_client("b", "127.0.0.1", os.getpid())
    actor.close_client("b")
    service = json.loads(text_of(ask(actor, Verb.STATS)))["service"]
    assert (service["name"], service["namespace"], service["transport"]) == ("name", "space", "ray")
    assert (service["clients"], service["pid"]) == (1, os.getpid())
    assert service["memory_bytes"] > 2**20
    assert service["uptime_s"] >= 0


def test_owners_verbs_are_a_closed_list() -> None:
    actor = make(buffer)
    for verb in ("extend", "__class__", "_storage", "lock", ""):
        with pytest.raises(ValueError, match="verb"):
            actor.administer(verb)
    owners = (OwnerCalls, RayEpisodicBuffer)
    named = {name for owner in owners for name, value in vars(owner).items() if inspect.isfunction(value)}
    assert named >= OWNER_VERBS


def test_an_owners_verb_returns_no_part_of_the_buffer() -> None:
    actor = make(buffer)
    assert actor.administer("share") is None
    assert actor.administer("empty", True) is None
    assert isinstance(actor.administer("state_dict"), dict)
    with pytest.raises(TypeError):
        actor.administer("set_sampler", 3)


def test_rows_survive_what_is_asked_of_it() -> None:
    actor = make(buffer)
    source = buffer()
    source.extend(stamped_rows(5))
    actor.administer("load_state_dict", source.state_dict())
    assert ask(actor, Verb.LENGTH).argument(0) == 5
    assert ask(actor, Verb.WRITE_COUNT).argument(0) == 5
