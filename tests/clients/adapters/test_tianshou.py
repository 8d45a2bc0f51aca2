"""The calls that Tianshou's collectors, algorithms and trainers make of a buffer; Tianshou itself isn't needed."""

from __future__ import annotations

import pickle
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from clients.adapters import tianshou_buffer
from clients.adapters.tianshou import HostedSteps
from replay_service.episodic import PrioritizedVectorReplayBuffer, VectorReplayBuffer
from tests.clients.adapters.near import steps_handle


class TheirBatch:
    """Nested, made of a dict and giving one, as Tianshou's."""

    def __init__(self, content: dict[str, Any]) -> None:
        for name, value in content.items():
            setattr(self, name, TheirBatch(value) if isinstance(value, dict) else value)

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(value, "to_dict", lambda v=value: v)() for name, value in vars(self).items()}


class TheirManager:
    """Has what Tianshou's manager has, and would do it here."""

    buffers: list[Any]

    def hasnull(self) -> bool:
        raise AssertionError("asked where there is nothing")

    def update(self, other: Any) -> Any:
        return len(self.buffers)


@pytest.fixture
def buffer(monkeypatch: pytest.MonkeyPatch) -> Any:
    tianshou, data = ModuleType("tianshou"), ModuleType("tianshou.data")
    data.Batch, data.ReplayBufferManager = TheirBatch, TheirManager  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tianshou", tianshou)
    monkeypatch.setitem(sys.modules, "tianshou.data", data)
    return tianshou_buffer(steps_handle(VectorReplayBuffer(10, 2)))


def step(number: int, over: bool = False) -> TheirBatch:
    """One step of both environments."""
    flags = {"terminated": np.array([over, False]), "truncated": np.array([False, False])}
    obs = np.array([number, 100 + number])
    extra: dict[str, Any] = {"info": {"env_id": np.arange(2)}, "policy": {}}
    return TheirBatch(
        {"obs": obs, "act": obs, "rew": obs * 1.0, "obs_next": obs + 1, "done": obs < 0, **flags, **extra}
    )


def fill(buffer: Any) -> None:
    for number in range(4):
        ptr, ep_rew, ep_len, ep_idx = buffer.add(step(number, over=number == 2), buffer_ids=np.arange(2))
        assert ptr.tolist() == [number, 5 + number]
        assert ep_len.tolist() == [3 if number == 2 else 0, 0]
        assert ep_rew.tolist() == [3.0 if number == 2 else 0.0, 0.0]
        assert ep_idx.tolist() == [3 if number == 3 else 0, 5]


def test_collecting(buffer: Any) -> None:
    assert isinstance(buffer, TheirManager)
    assert (buffer.maxsize, buffer.buffer_num, len(buffer)) == (10, 2, 0)
    fill(buffer)
    assert len(buffer) == 8
    assert not buffer.hasnull()
    indices = buffer.get_buffer_indices(0, 3)
    assert indices.tolist() == [0, 1, 2]
    episode = buffer[indices]
    assert isinstance(episode, TheirBatch)
    assert episode.obs.tolist() == [0, 1, 2]
    assert episode.info.env_id.tolist() == [0, 0, 0]
    buffer.set_array_at_key(np.array([3.0, 2.0, 1.0]), "togo", index=indices)
    assert buffer[indices].togo.tolist() == [3.0, 2.0, 1.0]
    # The other steps have none yet.
    assert buffer.hasnull()
    assert buffer.isnull().togo.sum() == 5


def test_slots_of_an_episode_around_the_end_of_its_ring(buffer: Any) -> None:  # E32
    assert buffer.get_buffer_indices(4, 2).tolist() == [4, 0, 1]
    assert buffer.get_buffer_indices(3, 5).tolist() == [3, 4]
    assert buffer.get_buffer_indices(8, 7).tolist() == [8, 9, 5, 6]
    for start, stop in ((0, 6), (5, 4), (10, 10)):
        with pytest.raises(ValueError, match=rf"start \({start}\) and stop \({stop}\) must lie in one ring"):
            buffer.get_buffer_indices(start, stop)


def test_computing_returns(buffer: Any) -> None:
    fill(buffer)
    batch, indices = buffer.sample(0)
    assert indices.tolist() == buffer.sample_indices(0).tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert batch.obs.tolist() == [0, 1, 2, 3, 100, 101, 102, 103]
    assert buffer.next(indices).tolist() == [1, 2, 2, 3, 6, 7, 8, 8]
    assert buffer.prev(indices).tolist() == [0, 0, 1, 3, 5, 5, 6, 7]
    assert buffer.unfinished_index().tolist() == [3, 8]
    assert np.flatnonzero(buffer.done).tolist() == np.flatnonzero(buffer.terminated).tolist() == [2]
    assert buffer.rew.shape == (10,)
    assert buffer.get(indices, "obs").tolist() == batch.obs.tolist()
    assert buffer.info.env_id.shape == (10,)
    assert len(buffer.sample(20)[1]) == 20
    buffer.reset(keep_statistics=True)
    assert len(buffer) == 0


def test_priorities_only_where_there_are_any(buffer: Any) -> None:
    assert not hasattr(buffer, "update_weight")
    assert not hasattr(buffer, "set_beta")
    by_priority = HostedSteps(steps_handle(PrioritizedVectorReplayBuffer(10, 2, alpha=1.0, beta=0.5)), TheirBatch)
    fill(by_priority)
    by_priority.update_weight(np.array([0, 1, 2, 3, 5, 6, 7, 8]), np.array([1.0, 0, 0, 0, 0, 0, 0, 0]))
    by_priority.set_beta(1.0)
    batch, indices = by_priority.sample(50)
    assert set(indices.tolist()) == {0}
    assert batch.weight.tolist() == [1.0] * 50


def test_what_only_an_owner_can_do_is_refused(buffer: Any) -> None:
    with pytest.raises(AttributeError, match="buffers must be a call of a hosted buffer or one of obs, act"):
        buffer.update(buffer)


def test_it_pickles_as_its_handle(buffer: Any) -> None:
    again, arguments = buffer.__reduce__()[:2]
    assert again is tianshou_buffer
    assert arguments == (buffer.client,)
    assert pickle.loads(pickle.dumps(again)) is tianshou_buffer


def test_without_tianshou_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tianshou", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"^tianshou must be installed.*pip install 'replay-service\[tianshou\]'"
    ):
        tianshou_buffer(steps_handle(VectorReplayBuffer(20, 2)))
