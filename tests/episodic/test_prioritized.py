"""Draws by priority. Names E… are rows of the semantics that are kept to."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from replay_service.episodic import PrioritizedReplayBuffer, PrioritizedVectorReplayBuffer, ReplayBuffer, SegmentTree
from replay_service.errors import PriorityError
from tests.episodic.steps import rows, tr

close = pytest.approx


def three() -> PrioritizedReplayBuffer:
    """What E63 begins with."""
    buffer = PrioritizedReplayBuffer(4, alpha=0.5, beta=0.5)
    for number in range(3):
        buffer.add(tr(number))
    assert buffer.weight.tolist() == [1, 1, 1, 0]
    buffer.update_weight(np.array([0, 1]), np.array([4.0, -9.0]))
    return buffer


def test_e63_weights_of_a_batch() -> None:  # E63
    buffer = three()
    assert buffer.weight.tolist() == close([2, 3, 1, 0], rel=1e-6)
    assert buffer.weight.sum() == close(6, rel=1e-6)
    # The smallest priority so far is 1: these are tree ** -beta.
    assert buffer.get_weight([0, 1, 2]).tolist() == close([0.707107, 0.577350, 1], rel=1e-5)
    assert buffer[[0, 1, 2]].weight.tolist() == close([0.707107, 0.577350, 1], rel=1e-5)
    assert buffer[[0]].weight.tolist() == [1]
    assert buffer[0].weight == 1


def test_e64_e65_weights_are_those_of_the_paper() -> None:  # E64, done right; E65
    buffer = three()
    buffer.add(tr(3))
    assert buffer.weight[3] == close(3, rel=1e-6)  # the root of the largest priority so far, 9
    buffer.update_weight([2], [0.25])
    assert buffer.weight.tolist() == close([2, 3, 0.5, 3], rel=1e-6)
    # The smallest priority counts to the power of alpha, as all others do.
    assert buffer.get_weight(np.arange(4)).tolist() == close([0.5, 0.408248, 1, 0.408248], rel=1e-5)
    assert buffer[:].weight.tolist() == close([0.5, 0.408248, 1, 0.408248], rel=1e-5)
    buffer.set_beta(1.0)
    assert buffer[:].weight.tolist() == close([0.25, 0.166667, 1, 0.166667], rel=1e-5)


def test_e66_draws_follow_the_priorities() -> None:  # E66
    buffer = three()
    buffer.add(tr(3))
    buffer.update_weight([2], [0.25])
    counts = np.bincount(buffer.sample_indices(40_000), minlength=4) / 40_000
    assert counts.tolist() == close((np.array([2, 3, 0.5, 3]) / 8.5).tolist(), abs=0.01)


def test_e67_weights_with_full_correction() -> None:  # E67
    buffer = PrioritizedReplayBuffer(4, alpha=1.0, beta=1.0)
    for number in range(4):
        buffer.add(tr(number))
    buffer.update_weight(np.arange(4), torch.tensor([1.0, 2.0, 4.0, 8.0]))
    assert buffer[:].weight.tolist() == close([1, 0.5, 0.25, 0.125], rel=1e-6)
    assert buffer[[1, 3]].weight.tolist() == close([1, 0.25], rel=1e-6)
    tree = SegmentTree(4)
    tree[np.arange(4)] = buffer.weight
    assert tree.get_prefix_sum_idx([0.5, 1.5, 3.5, 14.0]).tolist() == [0, 1, 2, 3]


def test_largest_only_grows_and_smallest_only_falls() -> None:
    buffer = PrioritizedReplayBuffer(6, alpha=1.0, beta=1.0)
    for number in range(2):
        buffer.add(tr(number))
    buffer.update_weight([0, 1], [8.0, 0.5])
    buffer.update_weight([0, 1], [2.0, 2.0])
    buffer.add(tr(2))
    assert buffer.weight[:3].tolist() == close([2, 2, 8], rel=1e-6)
    assert buffer.get_weight([0, 1, 2]).tolist() == close([0.25, 0.25, 0.0625], rel=1e-6)
    buffer.update_weight([0], [0.0])
    assert 0 < buffer.weight[0] == close(1.1920929e-7)


def test_draws_are_independent_of_each_other() -> None:
    buffer = PrioritizedReplayBuffer(4, alpha=1.0, beta=1.0)
    for number in range(4):
        buffer.add(tr(number))
    # With strata each of the four equal steps would come exactly once in every four.
    assert any(len(set(buffer.sample_indices(4).tolist())) < 4 for _ in range(20))


def test_e69_reset_forgets_priorities() -> None:  # E69, done right
    buffer = PrioritizedReplayBuffer(5, alpha=1.0, beta=0.5)
    for number in range(4):
        buffer.add(tr(number))
    buffer.update_weight([1], [5.0])
    buffer.reset()
    buffer.add(tr(9))
    assert set(buffer.sample_indices(200).tolist()) == {0}
    assert buffer.weight.tolist() == [1, 0, 0, 0, 0]


def test_e70_steps_of_another_buffer_are_new() -> None:  # E70
    buffer, other = PrioritizedReplayBuffer(6, alpha=1.0, beta=0.5), ReplayBuffer(3)
    buffer.add(tr(0))
    buffer.update_weight([0], [3.0])
    for number in range(2):
        other.add(tr(number))
    buffer.update(other)
    assert buffer.weight.tolist() == close([3, 3, 3, 0, 0, 0], rel=1e-6)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, [1.0, 2.0, 3.0]])
def test_priorities_that_are_none_change_nothing(wrong: Any) -> None:
    buffer = three()
    before = buffer.weight.tolist()
    with pytest.raises(ValueError, match="new_weight"):
        buffer.update_weight([0, 1], wrong)
    with pytest.raises(PriorityError):
        buffer.update_weight([0, 1], [1.0, np.nan])
    with pytest.raises(IndexError):
        buffer.update_weight([0, 3], [1.0, 1.0])
    assert buffer.weight.tolist() == before
    assert buffer.sample_indices(5).size == 5


def test_draws_of_none_and_all_are_as_without_priorities() -> None:
    buffer = three()
    assert buffer.sample_indices(0).tolist() == [0, 1, 2]
    assert sorted(buffer.sample_indices(None).tolist()) == [0, 1, 2]
    assert buffer.sample_indices(-1).size == 0
    buffer.init_weight([0])
    assert buffer.weight[0] == close(3, rel=1e-6)


def test_settings_reach_every_ring() -> None:
    buffer = PrioritizedVectorReplayBuffer(8, 2, alpha=1.0, beta=0.0, weight_norm=False)
    for number in range(3):
        buffer.add(rows([number, number]))
    buffer.update_weight([0, 4], [4.0, 2.0])
    assert buffer.weight.tolist() == close([4, 1, 1, 0, 2, 1, 1, 0], rel=1e-6)
    assert buffer[:].weight.tolist() == [1] * 6
    buffer.set_beta(1.0)
    assert buffer.beta == 1.0
    assert buffer[:].weight.tolist() == close([0.25, 1, 1, 0.5, 1, 1], rel=1e-6)
    counts = np.bincount(buffer.sample_indices(20_000), minlength=8) / 20_000
    assert counts.tolist() == close([0.4, 0.1, 0.1, 0, 0.2, 0.1, 0.1, 0], abs=0.02)


def test_stacks_are_whole_and_still_drawn_by_priority() -> None:
    buffer = PrioritizedReplayBuffer(10, 1.0, 0.5, stack_num=3, sample_avail=True)
    for number in range(8):
        buffer.add(tr(number, number == 3))
    buffer.update_weight([2, 6], [7.0, 7.0])
    slots = buffer.sample_indices(4000)
    assert set(slots.tolist()) == {2, 3, 6, 7}
    assert np.bincount(slots, minlength=8)[[2, 6]].sum() / 4000 == close(14 / 16, abs=0.03)


def test_a_copy_draws_the_same(tmp_path: Path) -> None:
    buffer = three()
    buffer.set_beta(0.7)
    buffer.save_hdf5(tmp_path / "file.hdf5")
    copies = [pickle.loads(pickle.dumps(buffer)), PrioritizedReplayBuffer.load_hdf5(tmp_path / "file.hdf5"), buffer]
    drawn = [copy.sample(20) for copy in copies]
    assert drawn[0][1].tolist() == drawn[1][1].tolist() == drawn[2][1].tolist()
    assert drawn[0][0].weight.tolist() == drawn[1][0].weight.tolist() == drawn[2][0].weight.tolist()


def test_dropnull_keeps_priorities() -> None:
    buffer = three()
    buffer.set_array_at_key([np.nan, 1.0, 1.0], "ret", index=[0, 1, 2])
    buffer.dropnull()
    assert buffer.weight.tolist() == close([3, 1, 0, 0], rel=1e-6)


@pytest.mark.parametrize("settings", [(0.0, 0.5), (-1.0, 0.5), (0.5, -0.1), (np.nan, 0.5), (0.5, np.inf)])
def test_wrong_settings(settings: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        PrioritizedReplayBuffer(4, *settings)
    with pytest.raises(ValueError, match="must be"):
        three().set_beta(-1.0)


def test_late_priorities_pass_by_steps_that_were_overwritten() -> None:
    buffer = PrioritizedReplayBuffer(4, alpha=1.0, beta=1.0)
    for number in range(4):
        buffer.add(tr(number, term=number == 3))
    batch, _ = buffer.sample(0)
    assert batch.generation.tolist() == [0, 0, 0, 0]
    buffer.add(tr(4))  # over slot 0
    set_now = buffer.update_weight(np.arange(4), [9.0, 5.0, 6.0, 7.0], generation=batch.generation)
    assert set_now.tolist() == [False, True, True, True]
    assert buffer.weight.tolist() == close(
        [1, 5, 6, 7]
    )  # 9 belonged to the step that is gone, also as the largest so far
    buffer.add(tr(5))
    assert buffer.weight[1] == close(7)
    assert buffer[[[0, 1], [2, 3]]].generation.tolist() == [[1, 1], [0, 0]]


def test_no_step_outlives_what_moves_or_forgets_it() -> None:
    def stale(change: Any) -> list[bool]:
        buffer = PrioritizedVectorReplayBuffer(8, 2, alpha=1.0, beta=1.0)
        buffer.add(rows([0, 100]))
        buffer.add(rows([1, 101]))
        slots = buffer.sample_indices(0)
        stamps = buffer[slots].generation
        change(buffer)
        set_now: list[bool] = buffer.update_weight(slots, np.full(4, 3.0), generation=torch.from_numpy(stamps)).tolist()
        return set_now

    def reset_and_add(buffer: PrioritizedVectorReplayBuffer) -> None:
        buffer.reset()
        buffer.add(rows([7, 107]))

    def drop_first(buffer: PrioritizedVectorReplayBuffer) -> None:
        buffer.set_array_at_key(np.array([np.nan]), "ret", index=[0], default_value=0.0)
        buffer.dropnull()

    assert stale(lambda buffer: None) == [True] * 4
    assert stale(lambda buffer: buffer.reset()) == [False] * 4
    assert stale(reset_and_add) == [False] * 4
    assert stale(drop_first) == [False] * 4
    assert stale(lambda buffer: buffer.load_state_dict(buffer.state_dict())) == [True] * 4


def test_generations_that_are_none_change_nothing() -> None:
    buffer = three()
    before = buffer.weight.tolist()
    for wrong in ([0], [0.0, 0.0], [0, 0, 0]):
        with pytest.raises(ValueError, match="generation"):
            buffer.update_weight([0, 1], [5.0, 5.0], generation=wrong)
    with pytest.raises(PriorityError):
        buffer.update_weight([0, 1], [5.0, np.nan], generation=[0, 7])
    with pytest.raises(ValueError, match="new_weight"):
        buffer.update_weight([0, 1], [5.0], generation=[0, 0])
    assert buffer.update_weight([0, 3, 99], [2.0**0.5, 5.0, 5.0], generation=[-1, -1, -1]).tolist() == [False] * 3
    assert buffer.weight.tolist() == before
