"""Priorities and patches for several buffers: each reaches the buffer it was drawn from, all of them or none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service import (
    LayoutError,
    LazyTensorStorage,
    PrioritizedSampler,
    PriorityError,
    ReplayBuffer,
    ReplayBufferEnsemble,
    Sequence,
    TensorDictReplayBuffer,
)
from tests.buffer.ensembles import BASE, ensemble, member, stamps_by_member
from tests.rows import stamped_rows

INDEX = {"buffer_ids": torch.tensor([[0, 0], [1, 1]]), "index": torch.tensor([[2, 0], [1, 3]])}
LIVE = torch.zeros(2, 2, dtype=torch.int64)


def _prioritized(*rows: int) -> ReplayBufferEnsemble:
    sampler = [PrioritizedSampler(10, 1.0, 1.0, eps=0.0) for _ in rows]
    return ReplayBufferEnsemble(
        *(member(place, count, sampler=sampler[place]) for place, count in enumerate(rows)), batch_size=8
    )


def _priorities(rb: ReplayBufferEnsemble) -> list[list[float]]:
    return [buffer.sampler.priorities().tolist() for buffer in rb.members]


@pytest.mark.parametrize(
    "priority",
    [
        torch.tensor([[2.0, 3.0], [4.0, 5.0]]),
        torch.tensor([2.0, 3.0, 4.0, 5.0]),
        torch.tensor([[[2.0, 1.0], [3.0, 0.0]], [[4.0, 4.0], [0.0, 5.0]]]),
    ],
)
def test_priorities_reach_their_buffers(priority: torch.Tensor) -> None:
    rb = _prioritized(4, 4)
    assert rb.update_priority(INDEX, priority).updated.tolist() == [[True, True], [True, True]]
    assert _priorities(rb) == [[3.0, 1.0, 2.0, 1.0], [1.0, 4.0, 1.0, 5.0]]


def test_one_priority_for_all_and_stale_rows() -> None:
    rb = _prioritized(4, 4)
    rb[1].extend(stamped_rows(8))
    result = rb.update_priority(INDEX, 9.0, generation=LIVE)
    assert result.updated.tolist() == [[True, True], [False, True]]
    assert _priorities(rb)[0] == [9.0, 1.0, 9.0, 1.0]


def test_a_sampler_without_priorities_takes_none() -> None:
    rb = ReplayBufferEnsemble(member(0, 4), member(1, 4, sampler=PrioritizedSampler(10, 1.0, 1.0)))
    assert rb.update_priority(INDEX, 2.0).updated.tolist() == [[False, False], [True, True]]


@pytest.mark.parametrize(
    ("index", "settings", "error"),
    [
        (INDEX, {"priority": torch.tensor([[2.0, 3.0], [4.0, float("nan")]])}, PriorityError),
        ({**INDEX, "index": torch.tensor([[2, 0], [1, 4]])}, {"priority": 2.0}, IndexError),
        ({**INDEX, "buffer_ids": torch.tensor([[0, 0], [1, 2]])}, {"priority": 2.0}, IndexError),
        (INDEX, {"priority": torch.ones(3)}, ValueError),
        (INDEX, {"priority": 2.0, "generation": torch.zeros(3).long()}, ValueError),
        (torch.tensor([1]), {"priority": 2.0}, TypeError),
    ],
)
def test_refused_priorities_change_no_buffer(index: Any, settings: dict[str, Any], error: type[Exception]) -> None:
    rb = _prioritized(4, 4)
    with pytest.raises(error):
        rb.update_priority(index, **settings)
    assert _priorities(rb) == [[1.0] * 4, [1.0] * 4]


def test_a_buffer_without_stamps_is_told_before_anything_is_set() -> None:
    plain = ReplayBuffer(storage=LazyTensorStorage(10), sampler=PrioritizedSampler(10, 1.0, 1.0))
    plain.extend(stamped_rows(4))
    one = member(0, 4, sampler=PrioritizedSampler(10, 1.0, 1.0))
    with pytest.raises(ValueError, match="track_generations"):
        ReplayBufferEnsemble(one, plain).update_priority(INDEX, 2.0, generation=LIVE)
    assert one.sampler.priorities().tolist() == [1.0] * 4


def test_a_batch_sets_its_own_priorities() -> None:
    rb = _prioritized(4, 4)
    sample = rb.sample()
    sample["td_error"] = (sample["action"] % BASE + 2).float()
    rb.update_tensordict_priority(sample)
    for place, priorities in enumerate(_priorities(rb)):
        drawn = sample["index", "index"][sample["index", "buffer_ids"] == place].unique().tolist()
        assert [priorities[slot] for slot in drawn] == [slot + 2.0 for slot in drawn]
    with pytest.raises(KeyError, match="td_error"):
        rb.update_tensordict_priority(rb.sample())


def test_windows_give_their_priorities_to_anchors() -> None:
    parts = [
        member(place, 9, sampler=PrioritizedSampler(10, 1.0, 1.0, eps=0.0), sample_unit=Sequence(length=2))
        for place in range(2)
    ]
    rb = ReplayBufferEnsemble(*parts, sample_from_all=True)
    sample = rb.sample(4)
    sample["td_error"] = torch.arange(8.0).view(2, 4) + 2
    rb.update_tensordict_priority(sample)
    for place in range(2):
        anchors = sample["anchor_index"][place].tolist()
        valid = (sample["validity_mask"] & sample["learning_mask"])[place].tolist()
        errors = sample["td_error"][place].tolist()
        wanted = {}
        for window in (0, 2):
            wanted[anchors[window]] = max(errors[k] for k in (window, window + 1) if valid[k])
        got = _priorities(rb)[place]
        assert {anchor: got[anchor] for anchor in wanted} == wanted


def test_patches_reach_their_buffers() -> None:
    rb = ensemble(4, 4)
    patch = TensorDict({"action": torch.tensor([[50, 51], [52, 53]])}, [2, 2])
    for given in (patch, dict(patch)):
        result = rb.update_if_present(index=INDEX, generation=LIVE, patch=given)
        assert result.updated.tolist() == [[True, True], [True, True]]
        assert stamps_by_member(rb) == [[51, 1, 50, 3], [BASE, 52, BASE + 2, 53]]


def test_stale_rows_are_skipped() -> None:
    rb = ensemble(4, 4)
    rb[1].extend(stamped_rows(8, stamp=70))
    patch = {"action": torch.tensor([[50, 51], [52, 53]])}
    result = rb.update_if_present(index=INDEX, generation=LIVE, patch=patch)
    assert result.updated.tolist() == [[True, True], [False, True]]
    assert (result.updated_count, result.stale_count) == (3, 1)
    gone = {**INDEX, "index": torch.tensor([[2, 0], [1, 99]])}
    assert rb.update_if_present(index=gone, generation=LIVE, patch=patch).updated.tolist()[1] == [False, False]


def test_versions_are_compared_in_each_buffer() -> None:
    rb = ensemble(4, 4)
    for buffer in rb.members:
        buffer[:] = buffer[:].set("version", torch.tensor([0, 5, 5, 0]))
    settings: dict[str, Any] = {"index": INDEX, "generation": LIVE, "patch": {"action": torch.full((2, 2), 9)}}
    result = rb.update_if_present(**settings, version_key="version", version=torch.tensor([[4, 4], [6, 6]]))
    assert result.updated.tolist() == [[False, True], [True, True]]
    assert result.version_rejected.tolist() == [[True, False], [False, False]]  # type: ignore[union-attr]
    assert [buffer[:]["version"].tolist() for buffer in rb.members] == [[4, 5, 5, 0], [0, 6, 5, 6]]
    assert rb.update_if_present(**settings, version_key="version", version=1).version_rejected_count == 4


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"patch": {"unknown": torch.zeros(2, 2)}}, LayoutError),
        ({"patch": {"action": torch.zeros(2, 2)}}, LayoutError),
        ({"patch": {"action": torch.zeros(2, 3).long()}}, LayoutError),
        ({"patch": {"action": torch.zeros(3, 2).long()}}, LayoutError),
        ({"version_key": "version"}, ValueError),
        ({"version_key": "version", "version": torch.zeros(3)}, ValueError),
        ({"version_key": "unknown", "version": 1}, KeyError),
        ({"generation": torch.zeros(3).long()}, ValueError),
        ({"index": {**INDEX, "buffer_ids": torch.tensor([[0, 0], [1, 2]])}}, IndexError),
    ],
)
def test_refused_patches_change_no_buffer(settings: dict[str, Any], error: type[Exception]) -> None:
    rb = ensemble(4, 4)
    before = stamps_by_member(rb)
    good: dict[str, Any] = {"index": INDEX, "generation": LIVE, "patch": {"action": torch.full((2, 2), 9)}}
    with pytest.raises(error):
        rb.update_if_present(**{**good, **settings})
    assert stamps_by_member(rb) == before


def test_what_only_the_second_buffer_refuses_changes_no_buffer() -> None:
    other = TensorDictReplayBuffer(
        storage=LazyTensorStorage(5), writer=member(0, 1).writer.__class__(track_generations=True)
    )
    other.extend(stamped_rows(4).exclude("action"))
    rb = ReplayBufferEnsemble(member(0, 4), other)
    with pytest.raises(LayoutError, match="action"):
        rb.update_if_present(index=INDEX, generation=LIVE, patch={"action": torch.full((2, 2), 9)})
    assert rb[0][:]["action"].tolist() == [0, 1, 2, 3]


def test_changed_records_are_told_to_their_buffers() -> None:
    rb = _prioritized(4, 4)
    rb.update_priority(INDEX, 7.0)
    rb.mark_update({"buffer_ids": torch.tensor([1]), "index": torch.tensor([3])})
    assert _priorities(rb) == [[7.0, 1.0, 7.0, 1.0], [1.0, 7.0, 1.0, 7.0]]
    with pytest.raises(IndexError):
        rb.mark_update({"buffer_ids": torch.tensor([1]), "index": torch.tensor([9])})
