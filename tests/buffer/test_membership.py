"""Draws and writes in two steps, as those ask for who see several buffers as one."""

from __future__ import annotations

import pytest
import torch

from replay_service import (
    ImmutableDatasetWriter,
    LayoutError,
    LazyTensorStorage,
    PrioritizedSampler,
    PriorityError,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TensorStorage,
)
from tests.buffer.ensembles import member
from tests.rows import assert_rows_are_whole, stamped_rows


def test_a_write_is_validated_before_it_is_made() -> None:
    buffer = member(0, 2)
    with buffer.lock:
        write = buffer.writing(buffer.intake(stamped_rows(3, stamp=10)))
        assert len(buffer) == 2
        assert write().tolist() == [2, 3, 4]
    assert buffer[:]["action"].tolist() == [0, 1, 10, 11, 12]


def test_what_samples_carry_is_not_stored() -> None:
    buffer = member(0, 4)
    assert "index" not in buffer.intake(buffer.sample(2))


def test_what_is_refused_is_refused_at_once() -> None:
    rows = stamped_rows(2)
    with pytest.raises(LayoutError):
        member(0, 1).writing(rows.exclude("action"))
    rows["td_error"] = torch.tensor([1.0, -1.0])
    prioritized = TensorDictReplayBuffer(storage=LazyTensorStorage(4), sampler=PrioritizedSampler(4, 1.0, 1.0))
    with pytest.raises(PriorityError):
        prioritized.writing(rows)
    assert prioritized.writing(rows, update_priority=False)().tolist() == [0, 1]
    rows["next", "reward"][0] = float("nan")
    best = TensorDictReplayBuffer(
        storage=LazyTensorStorage(4), writer=TensorDictMaxValueWriter(rank_key=("next", "reward"))
    )
    with pytest.raises(PriorityError):
        best.writing(rows)
    fixed = TensorDictReplayBuffer(storage=TensorStorage(stamped_rows(2)), writer=ImmutableDatasetWriter())
    with pytest.raises(RuntimeError, match="fixed"):
        fixed.writing(stamped_rows(1))


def test_a_draw_is_read_and_stamped_anew() -> None:
    buffer = member(0, 6)
    with buffer.lock:
        pick = buffer.pick(4)
        assert_rows_are_whole(buffer.read(pick))
    buffer.extend(stamped_rows(10))
    with buffer.lock:
        buffer.restamp(pick)
    assert pick.info["index_generation"].tolist() == [1] * 4


def test_one_draw_behind_another() -> None:
    buffer = member(0, 6, sampler=PrioritizedSampler(10, 1.0, 1.0))
    with buffer.lock:
        one, two = buffer.pick(2), buffer.pick(3)
    both = one.followed_by(two)
    assert both.records.tolist() == [*one.records.tolist(), *two.records.tolist()]
    assert both.info.keys() == one.info.keys()
    assert all(value.shape == (5,) for value in both.info.values())
