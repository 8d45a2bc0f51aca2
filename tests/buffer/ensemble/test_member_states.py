"""Counts, queries and states of several buffers, and what they leave to each."""

from __future__ import annotations

import multiprocessing
import pickle
from typing import Any

import pytest
import torch

from replay_service import (
    ImmutableDatasetWriter,
    LayoutError,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    RandomSampler,
    ReplayBufferEnsemble,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    TensorDictReplayBuffer,
    TensorStorage,
    traj,
)
from tests.buffer.ensembles import ensemble, member, routed_rows, stamps_by_member
from tests.rows import stamped_rows


def test_calls_that_belong_to_one_buffer() -> None:
    rb = ensemble(1, 1)
    calls: list[Any] = [
        lambda: rb.set_sampler(RandomSampler()),
        lambda: rb.set_storage(ListStorage(1)),
        lambda: rb.set_writer(RoundRobinWriter()),
        rb.read_all_in_order,
        lambda: rb.write_all(stamped_rows(1)),
        lambda: rb.set_("action", 1),
        lambda: rb.set_at_("action", 1, 0),
        lambda: rb.update_(stamped_rows(1)),
        lambda: rb.__setitem__(0, stamped_rows(1)),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"must be asked of one of the buffers: rbs\[0\]"):
            call()


def test_parts_of_a_buffer_must_stay() -> None:
    rb = ensemble(2, 2)
    rb[1].set_sampler(SamplerWithoutReplacement())
    with pytest.raises(RuntimeError, match=r"rbs\[1\] must keep the parts"):
        rb.sample()


def test_counts() -> None:
    rb = ensemble(3, 5)
    rb[0].extend(stamped_rows(9))
    stats = rb.stats()
    assert (len(rb), rb.write_count) == (15, 17)
    assert stats == {
        "size": 15,
        "write_count": 17,
        "prefetch_queue_size": 0,
        "initialized": True,
        "capacity": 20,
        "utilization": 0.75,
        "num_buffers": 2,
    }
    rb.empty()
    assert (len(rb), rb.write_count) == (0, 0)


def test_queries_go_through_all_buffers() -> None:
    rb = ensemble(10, 10)
    found = rb.query(traj.length >= 3)
    singly = [t for buffer in rb.members for t in buffer.query(traj.length >= 3)]
    assert [t.action.tolist() for t in found] == [t.action.tolist() for t in singly]
    joined = rb.matches(traj.length >= 3)
    assert joined.lengths == [t.length for t in singly]
    assert joined.steps["action"].tolist() == [a for t in singly for a in t.action.tolist()]
    assert rb.matches(traj.length > 99).lengths == rb.query(traj.length > 99) == []


def test_empty_spares_fixed_data_sets() -> None:
    fixed = TensorDictReplayBuffer(storage=TensorStorage(stamped_rows(3)), writer=ImmutableDatasetWriter())
    rb = ReplayBufferEnsemble(member(0, 2), fixed)
    with pytest.raises(RuntimeError, match="fixed"):
        rb.empty()
    assert len(rb) == 5


def _mixed_ensemble(seed: int) -> ReplayBufferEnsemble:
    rb = ReplayBufferEnsemble(
        member(0, 0, sampler=PrioritizedSampler(10, 0.7, 0.5)),
        member(1, 0, sampler=SamplerWithoutReplacement()),
        routing_key="who",
        batch_size=4,
        p=[1, 2],
    )
    rb.set_rng(torch.Generator().manual_seed(seed))
    return rb


def test_a_loaded_ensemble_goes_on_alike() -> None:
    rb = _mixed_ensemble(3)
    rb.extend(routed_rows([0, 1] * 7))
    rb.update_priority(rb.sample()["index"], torch.rand(2, 2, generator=torch.Generator().manual_seed(0)) + 0.1)
    state = rb.state_dict()
    other = _mixed_ensemble(9)
    other.load_state_dict(state)
    for _ in range(50):
        assert rb.sample()["action"].tolist() == other.sample()["action"].tolist()
    more = routed_rows([0, 1, 1], stamp=70)
    assert (rb.extend(more) == other.extend(more)).all()
    again = _mixed_ensemble(0)
    again.load_state_dict(state)
    assert stamps_by_member(again) == [list(range(0, 14, 2)), list(range(1, 14, 2))], "loading must not alias the state"


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    rb = _mixed_ensemble(3)
    rb.extend(routed_rows([0, 1]))
    state = rb.state_dict()
    state["storage"]["0"] = _filled_state(member(0, 0), 5)
    state["storage"]["1"] = _filled_state(TensorDictReplayBuffer(storage=LazyTensorStorage(99)), 50)
    with pytest.raises(LayoutError, match="max_size"):
        rb.load_state_dict(state)
    assert stamps_by_member(rb) == [[0], [1]]
    with pytest.raises(KeyError):
        rb.load_state_dict({"storage": {}, "sampler": {}, "writer": {}})
    with pytest.raises(ValueError, match=r"state \(3 buffers\) must be that of 2 buffers"):
        rb.load_state_dict(ensemble(1, 1, 1).state_dict())
    assert stamps_by_member(rb) == [[0], [1]]


def _filled_state(buffer: TensorDictReplayBuffer, rows: int) -> Any:
    buffer.extend(routed_rows([0] * rows, stamp=500))
    return buffer.storage.state_dict()


def test_a_copy_is_another_ensemble() -> None:
    rb = ensemble(5, 5, routing_key="who")
    copy = pickle.loads(pickle.dumps(rb))
    assert copy.sample()["action"].tolist() == rb.sample()["action"].tolist()
    copy[0].extend(stamped_rows(1))
    assert (len(copy), len(rb)) == (11, 10)


def _write_elsewhere(rb: ReplayBufferEnsemble) -> None:
    torch.set_num_threads(1)
    rb.extend(routed_rows([1, 0, 1], stamp=50))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_other_processes_see_and_write_the_same_records() -> None:
    rb = ReplayBufferEnsemble(member(0, 0), member(1, 0), routing_key="who", batch_size=8)
    rb.extend(routed_rows([0, 1]))
    assert rb.share() is rb
    process = multiprocessing.get_context("fork").Process(target=_write_elsewhere, args=(rb,))
    process.start()
    process.join(60.0)
    assert process.exitcode == 0
    assert (len(rb), rb.write_count) == (5, 5)
    assert stamps_by_member(rb) == [[0, 51], [1, 50, 52]]
    assert rb.sample().batch_size == (2, 4)
