"""Sample units: what becomes of anchors, checked against a walk through the ring step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from replay_service.buffer.replay_buffer import ReplayBuffer
from replay_service.buffer.samplers.prioritized import PrioritizedSampler
from replay_service.buffer.samplers.slice import SliceSampler
from replay_service.buffer.storages.lazy_tensor import LazyTensorStorage
from replay_service.buffer.storages.list import ListStorage
from replay_service.buffer.tensordict_buffer import TensorDictReplayBuffer
from replay_service.buffer.units import SampleUnit, Sequence, Transition
from replay_service.buffer.writers.round_robin import TensorDictRoundRobinWriter
from tests.buffer.episode_rows import buffer_of, episode_rows


def walked(unit: Sequence, anchor: int, episode_of: list[int]) -> tuple[list[int], list[bool]]:
    """The steps of a window, from steps in written order with the episode of each."""
    across = unit.episode_boundary == "include_reset"
    inside = [i for i, number in enumerate(episode_of) if across or number == episode_of[anchor]]
    first, last = inside[0], inside[-1]
    reach = unit.dilation * (unit.length + unit.bootstrap - 1)
    begin = max(first, min(anchor, last - reach)) if unit.episode_boundary == "stop" else anchor
    steps, valid = [], []
    for k in range(-unit.burn_in, unit.length + unit.bootstrap):
        wanted = begin + k * unit.dilation
        held = min(max(wanted, first), last)
        steps.append(held)
        valid.append(held == wanted)
    return steps, valid


@pytest.mark.parametrize("boundary", ["pad", "stop", "include_reset"])
@pytest.mark.parametrize("numbers", [(3, 0, 0, 1), (3, 2, 1, 1), (2, 1, 2, 2), (4, 3, 0, 3), (1, 0, 0, 1)])
@pytest.mark.parametrize("written", [13, 30, 41])
def test_windows_are_those_of_a_walk(boundary: Any, numbers: tuple[int, int, int, int], written: int) -> None:
    length, burn_in, bootstrap, dilation = numbers
    unit = Sequence(length, boundary, burn_in=burn_in, bootstrap=bootstrap, dilation=dilation)
    buffer = buffer_of(None, capacity=17, sample_unit=unit)
    rows = episode_rows([5, 3, 7, 1, 12, 6, 7], closed=False)[:written]
    for start in range(0, written, 4):
        buffer.extend(rows[start : start + 4])
        buffer.sample(1)  # so that the index is followed and not made in the end
    kept = rows[-17:]
    oldest, episode_of = written - len(kept), kept["number"].tolist()
    sample, info = buffer.sample(64, return_info=True)
    stored = [(int(row["number"]), int(row["step"])) for row in kept]
    pairs = list(zip(sample["number"].tolist(), sample["step"].tolist(), strict=True))
    for window in range(64):
        at = slice(window * unit.window, (window + 1) * unit.window)
        anchor = (int(info["anchor_index"][at][0]) - oldest) % 17
        steps, valid = walked(unit, anchor, episode_of)
        assert pairs[at] == [stored[step] for step in steps]
        assert info["validity_mask"][at].tolist() == valid
        assert info["index"][at].tolist() == [(oldest + step) % 17 for step in steps]
        learning = [False] * burn_in + [True] * length + [False] * bootstrap
        assert info["learning_mask"][at].tolist() == learning
        assert set(info["sequence_id"][at].tolist()) == {window}
        assert info["step_in_sequence"][at].tolist() == list(range(unit.window))


def _expanded(unit: Sequence, anchors: list[int], buffer: ReplayBuffer) -> tuple[Tensor, dict[str, Any]]:
    return unit.expand(torch.tensor(anchors), {}, buffer.storage)


def test_a_unit_works_alone_too() -> None:
    buffer = buffer_of(None, episode_rows([5, 5]))
    records, info = _expanded(Sequence(2, burn_in=1, bootstrap=1), [5], buffer)
    assert records.tolist() == [5, 5, 6, 7]
    assert info["learning_mask"].tolist() == [False, True, True, False]
    assert info["validity_mask"].tolist() == [False, True, True, True]


def test_without_a_done_key_a_lane_is_one_episode() -> None:
    buffer = buffer_of(None, TensorDict({"obs": torch.arange(10)}, [10]), capacity=20)
    records, info = _expanded(Sequence(3, done_key=None, burn_in=1), [0, 4, 9], buffer)
    assert records.tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 8, 9, 9, 9]
    assert info["validity_mask"].tolist() == [False] + [True] * 9 + [False, False]


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
def test_batches_are_flat_and_carry_their_masks(storage: Any) -> None:
    buffer = buffer_of(
        None, episode_rows([6, 6]), storage=storage(20), sample_unit=Sequence(3, burn_in=1), batch_size=5
    )
    sample, info = buffer.sample(return_info=True)
    assert sample.shape == (20,)
    for name in ("learning_mask", "validity_mask", "anchor_index", "sequence_id", "step_in_sequence", "index"):
        assert torch.equal(sample[name], info[name])


def test_lanes_are_kept() -> None:
    lanes = torch.stack([episode_rows([4, 4]), episode_rows([3, 5], first=10)])
    unit = Sequence(3, "stop", bootstrap=1)
    buffer = buffer_of(None, lanes, storage=LazyTensorStorage(16, ndim=2), sample_unit=unit)
    sample, info = buffer.sample(200, return_info=True)
    slots, lane = info["index"]
    assert info["anchor_index"].shape == (800, 2)
    assert sample["anchor_index"].shape == sample["index"].shape == (800, 2)
    assert torch.equal(lane, info["anchor_index"][:, 1])
    assert torch.equal(lane, (sample["number"] >= 10).long())
    windows = sample["number"].view(200, 4)
    assert (windows == windows[:, :1]).all()
    assert torch.equal(buffer.storage.column("step")[slots, lane], sample["step"])


def test_with_slices_every_step_of_a_slice_is_an_anchor() -> None:
    buffer = buffer_of(SliceSampler(slice_len=2), episode_rows([5, 5]), sample_unit=Sequence(3))
    sample, info = buffer.sample(4, return_info=True)
    assert sample.shape == (12,)
    assert "truncated" not in sample["next"].keys()  # noqa: SIM118 - what is said of slices is not said of windows
    assert ("next", "truncated") not in info
    anchors = info["anchor_index"].view(4, 3)[:, 0].view(2, 2)
    assert torch.equal(anchors[:, 1], anchors[:, 0] + 1)


def test_priorities_go_to_anchors_alone() -> None:
    sampler = PrioritizedSampler(10, 1.0, 1.0, eps=0.0)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(10),
        sampler=sampler,
        sample_unit=Sequence(2, burn_in=1, bootstrap=1),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        batch_size=3,
    )
    buffer.extend(episode_rows([6, 4]))
    buffer.update_priority(torch.arange(10), torch.tensor([0.0, 0, 0, 4, 0, 1, 0, 0, 0, 0]))
    sample, info = buffer.sample(64, return_info=True)
    assert set(sample["anchor_index"].tolist()) == {3, 5}
    by_window = sample["priority_weight"].view(64, 4)
    assert (by_window == by_window[:, :1]).all()
    for anchor, weight in ((3, 0.25), (5, 1.0)):
        assert sample["priority_weight"][sample["anchor_index"] == anchor].tolist()[0] == pytest.approx(weight)
    # Windows are [2 3 4 5] and [4 5 5* 5*]: of the rows to learn from, 4 and 5 give 40 and 50.
    sample["td_error"] = sample["index"].float() * 10
    buffer.extend(episode_rows([4])[:4])  # overwrites 0 to 3
    buffer.update_tensordict_priority(sample)
    priorities = sampler.priorities()
    assert priorities[5] == 50.0
    assert priorities[3] == 4.0  # a new record's default, not that of the one before it
    assert priorities[[4, 6, 7, 8, 9]].tolist() == [0.0] * 5
    assert info["anchor_generation"].shape == info["index_generation"].shape


def test_moved_ends_count_at_once() -> None:
    unit = Sequence(4)
    buffer = buffer_of(None, episode_rows([8]), sample_unit=unit)
    buffer.sample(1)
    buffer.set_at_(("next", "done"), torch.tensor([[True]]), torch.tensor([3]))
    records, _ = _expanded(unit, [2], buffer)
    assert records.tolist() == [2, 3, 3, 3]


def test_after_emptying_and_loading_windows_end_where_the_ring_does() -> None:
    def make() -> ReplayBuffer:
        return buffer_of(None, capacity=8, sample_unit=Sequence(3, "include_reset"))

    first, second = make(), make()
    first.extend(episode_rows([5]))
    first.sample(2)
    first.empty()
    first.extend(episode_rows([3, 8, 2]))
    second.extend(episode_rows([8]))
    second.sample(2)
    second.load_state_dict(first.state_dict())
    one, two = first.sample(50), second.sample(50)
    assert torch.equal(one["index"], two["index"])
    assert torch.equal(one["validity_mask"], two["validity_mask"])
    assert not bool(one["validity_mask"].all())


def test_a_transition_is_itself() -> None:
    plain, unit = (buffer_of(None, episode_rows([9]), sample_unit=given) for given in (None, Transition))
    assert torch.equal(plain.sample(20)["index"], unit.sample(20)["index"])


def test_units_of_ones_own() -> None:
    class Twice(SampleUnit):
        def expand(self, index: Tensor, info: dict[str, Any], storage: Any) -> tuple[Tensor, dict[str, Any]]:
            return index.repeat_interleave(2), info

    assert buffer_of(None, episode_rows([9]), sample_unit=Twice()).sample(3).shape == (6,)
    with pytest.raises(TypeError, match="sample_unit must be a SampleUnit"):
        ReplayBuffer(sample_unit=3)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"length": 0}, ValueError, "length"),
        ({"length": 2.5}, TypeError, "length"),
        ({"length": 2, "dilation": 0}, ValueError, "dilation"),
        ({"length": 2, "burn_in": -1}, ValueError, r"burn_in \(-1\)"),
        ({"length": 2, "bootstrap": -1}, ValueError, r"bootstrap \(-1\)"),
        ({"length": 2, "episode_boundary": "wrap"}, ValueError, "episode_boundary"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Sequence(**settings)


def test_an_end_key_that_is_not_stored_is_named() -> None:
    buffer = buffer_of(None, TensorDict({"obs": torch.arange(4)}, [4]), sample_unit=Sequence(2))
    with pytest.raises(KeyError, match=r"end flags \(next.done\).*done_key"):
        buffer.sample(2)
