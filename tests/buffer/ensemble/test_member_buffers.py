"""What a batch of several buffers is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service import (
    EmptyBufferError,
    LayoutError,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    ReplayBuffer,
    ReplayBufferEnsemble,
    SamplerWithoutReplacement,
    Sequence,
    SliceSampler,
    TensorDictReplayBuffer,
    traj,
)
from tests.buffer.ensembles import BASE, ensemble, member, routed_rows
from tests.buffer.goal_rows import goal_rows, her
from tests.rows import assert_rows_are_whole, stamped_rows


def test_a_sample_says_whose_its_rows_are() -> None:
    rb = ensemble(5, 7)
    seen = set()
    for _ in range(30):
        sample, info = rb.sample(return_info=True)
        assert sample.batch_size == (2, 4)
        assert_rows_are_whole(sample)
        index = sample["index"]
        assert index.batch_size == (2, 4)
        assert sample["action"].tolist() == (index["buffer_ids"] * BASE + index["index"]).tolist()
        assert (index["buffer_ids"] == index["buffer_ids"][:, :1]).all(), "a part comes from one buffer"
        assert torch.equal(info["index"]["index"], index["index"])
        assert torch.equal(info["index_generation"], sample["index_generation"])
        seen |= {tuple(part) for part in index["buffer_ids"].tolist()}
    assert seen == {(0, 0, 0, 0), (1, 1, 1, 1)}


def test_other_batch_sizes_and_parts() -> None:
    rb = ensemble(5, 7, 3, num_buffer_sampled=2)
    assert rb.sample(6).batch_size == (2, 3)
    with pytest.raises(ValueError, match=r"batch_size \(7\) must be divisible by num_buffer_sampled \(2\)"):
        rb.sample(7)
    rb.sampler.num_buffer_sampled = 4
    assert rb.sample(8).batch_size == (4, 2)


def test_sample_from_all() -> None:
    rb = ensemble(5, 7, 3, sample_from_all=True)
    assert rb.sample(6)["index", "buffer_ids"].tolist() == [[0, 0], [1, 1], [2, 2]]
    rb[1].empty()
    with pytest.raises(EmptyBufferError, match=r"rbs\[1\] must hold what 2 rows"):
        rb.sample(6)
    assert not rb.can_sample(6)


def test_p_decides() -> None:
    rb = ensemble(5, 5, p=[1, 3], num_buffer_sampled=4)
    drawn = torch.cat([rb.sample()["index", "buffer_ids"][:, 0] for _ in range(250)])
    assert 0.70 < float(drawn.float().mean()) < 0.80
    rb.sampler.p = [0, 2]
    assert rb.sample()["index", "buffer_ids"].unique().tolist() == [1]
    rb[1].empty()
    with pytest.raises(EmptyBufferError, match=r"rbs\[1\]"):
        rb.sample()
    rb.sampler.p = "sampleable"
    assert rb.sample()["index", "buffer_ids"].unique().tolist() == [0]


def test_without_p_empty_buffers_are_passed_over() -> None:
    rb = ensemble(0, 4, 0)
    assert rb.can_sample(9)
    assert rb.sample(9)["index", "buffer_ids"].unique().tolist() == [1]
    with pytest.raises(EmptyBufferError, match="none in any"):
        ensemble(0, 0).sample()
    assert not ensemble(0, 0).can_sample()


def test_the_seed_decides() -> None:
    draws = []
    for _ in range(2):
        rb = ensemble(9, 9, generator=torch.Generator().manual_seed(5))
        draws.append([rb.sample()["action"].tolist() for _ in range(5)])
    assert draws[0] == draws[1]


def test_buffers_keep_their_seeds_without_a_generator() -> None:
    one = member(0, 9)
    ReplayBufferEnsemble(one, batch_size=8)
    assert one.sample(8)["action"].tolist() == member(0, 9).sample(8)["action"].tolist()


def test_transforms_of_buffers_come_before_those_of_the_ensemble() -> None:
    def renamed(name: str) -> Any:
        return lambda data: data.rename_key_(name, "x")

    one, two = (
        TensorDictReplayBuffer(storage=LazyTensorStorage(5)),
        TensorDictReplayBuffer(storage=LazyTensorStorage(5)),
    )
    one.append_transform(renamed("a"))
    two.append_transform(renamed("b"))
    one.extend(TensorDict({"a": torch.zeros(3, 2)}, [3]))
    two.extend(TensorDict({"b": torch.ones(3, 2)}, [3]))
    rb = ReplayBufferEnsemble(
        one, two, sample_from_all=True, transform=lambda data: data.set("sum", data["x"].sum(-1)), batch_size=4
    )
    assert rb.sample()["sum"].tolist() == [[0, 0], [2, 2]]
    with pytest.raises(LayoutError, match=r"rbs\[1\] must have the entries of rbs\[0\].*lacks \['a'\] and has \['b'\]"):
        ReplayBufferEnsemble(
            *(TensorDictReplayBuffer(storage=buffer.storage) for buffer in (one, two)), sample_from_all=True
        ).sample(4)


def test_a_transform_that_leaves_rows_out_takes_the_index_along() -> None:
    rb = ensemble(5, 7, sample_from_all=True, transform=lambda data: data[:1])
    sample, info = rb.sample(return_info=True)
    assert sample["index", "buffer_ids"].tolist() == info["index"]["buffer_ids"].tolist() == [[0, 0, 0, 0]]


def test_collate_fn_gets_the_parts() -> None:
    rb = ensemble(5, 7, sample_from_all=True, collate_fn=lambda parts: torch.cat(parts))
    sample = rb.sample()
    assert sample.batch_size == (8,)
    assert [part.batch_size[0] for part in ReplayBufferEnsemble(member(0, 3), collate_fn=list).sample(4)] == [4]


def test_records_may_be_tensors_or_anything() -> None:
    buffers = [ReplayBuffer(storage=LazyTensorStorage(5)), ReplayBuffer(storage=ListStorage(5))]
    for place, buffer in enumerate(buffers):
        buffer.extend(torch.full((4, 2), place))
    data, info = ReplayBufferEnsemble(*buffers, sample_from_all=True).sample(6, return_info=True)
    assert data.tolist() == [[[0, 0]] * 3, [[1, 1]] * 3]
    assert info["index"]["buffer_ids"].tolist() == [[0] * 3, [1] * 3]
    words = ReplayBuffer(storage=ListStorage(5))
    words.extend(["a", "b"])
    assert [len(part) for part in ReplayBufferEnsemble(words, words_too()).sample(6)] == [3, 3]


def words_too() -> ReplayBuffer:
    words = ReplayBuffer(storage=ListStorage(5))
    words.extend(["c"])
    return words


def test_slices_mark_their_ends_whatever_the_other_sampler_says() -> None:
    rows = stamped_rows(30)
    rows["episode"] = torch.arange(30) // 10
    sliced = TensorDictReplayBuffer(
        storage=LazyTensorStorage(50), sampler=SliceSampler(slice_len=5, traj_key="episode"), batch_size=10
    )
    plain = ReplayBuffer(storage=LazyTensorStorage(50))
    for buffer in (sliced, plain):
        buffer.extend(rows)
    sample = ReplayBufferEnsemble(sliced, plain, sample_from_all=True).sample(20)
    assert sample[0]["next", "truncated"].flatten().tolist() == [False, False, False, False, True] * 2
    assert_rows_are_whole(sample[1])


def test_windows_of_a_buffer_with_a_sample_unit() -> None:
    rb = ReplayBufferEnsemble(
        *(member(place, 9, sample_unit=Sequence(length=3)) for place in range(2)), sample_from_all=True
    )
    sample = rb.sample(4)
    assert sample.batch_size == (2, 6)
    assert sample["anchor_index"].shape == (2, 6)


def test_priority_weight_is_one_where_there_are_no_priorities() -> None:
    prioritized = member(0, 6, sampler=PrioritizedSampler(10, 1.0, 1.0))
    rb = ReplayBufferEnsemble(prioritized, member(1, 6), sample_from_all=True, batch_size=8)
    prioritized.update_priority(torch.arange(6), torch.arange(1.0, 7.0))
    sample, info = rb.sample(return_info=True)
    assert sample["priority_weight"][1].tolist() == [1.0] * 4
    assert sample["priority_weight"][0].tolist() == pytest.approx((1 / (sample["action"][0] + 1)).tolist(), rel=1e-5)
    assert torch.equal(info["priority_weight"], sample["priority_weight"])


def test_an_epoch_that_ends_goes_over_into_the_next() -> None:
    epoch = member(0, 5, sampler=SamplerWithoutReplacement(shuffle=False))
    rb = ReplayBufferEnsemble(epoch, member(1, 5), sample_from_all=True, batch_size=6)
    assert [rb.sample()["action"][0].tolist() for _ in range(3)] == [[0, 1, 2], [3, 4, 0], [1, 2, 3]]


def test_records_that_are_used_up_end_with_an_error_that_uses_up_none() -> None:
    used = TensorDictReplayBuffer(storage=LazyTensorStorage(10), consume_after_n_samples=1)
    used.extend(stamped_rows(5))
    rb = ReplayBufferEnsemble(used, member(1, 5), sample_from_all=True, batch_size=6)
    rb.sample()
    with pytest.raises(EmptyBufferError, match=r"rbs\[0\]"):
        rb.sample()
    assert (len(used), len(rb)) == (2, 7)
    assert rb.sample(4)["action"].shape == (2, 2)


def test_a_failing_draw_takes_nothing_from_an_epoch() -> None:
    epoch = member(0, 8, sampler=SamplerWithoutReplacement(shuffle=False))
    rb = ReplayBufferEnsemble(epoch, member(1, 0), sample_from_all=True, batch_size=8)
    with pytest.raises(EmptyBufferError):
        rb.sample()
    rb[1].extend(stamped_rows(4))
    assert rb.sample()["action"][0].tolist() == [0, 1, 2, 3]


def test_lanes_have_coordinates() -> None:
    buffers = [TensorDictReplayBuffer(storage=LazyTensorStorage(20, ndim=2)) for _ in range(2)]
    for place, buffer in enumerate(buffers):
        buffer.extend(torch.stack([stamped_rows(5, stamp=place * BASE), stamped_rows(5, stamp=place * BASE + 100)]))
    rb = ReplayBufferEnsemble(*buffers, sample_from_all=True, batch_size=12)
    sample = rb.sample()
    index = sample["index"]
    assert index["index"].shape == (2, 6, 2)
    slot, lane = index["index"].unbind(-1)
    assert sample["action"].tolist() == (index["buffer_ids"] * BASE + lane * 100 + slot).tolist()
    assert rb[index]["action"].tolist() == sample["action"].tolist()
    with pytest.raises(ValueError, match=r"ndim 2.*routed"):
        ReplayBufferEnsemble(*buffers, routing_key="who")


def test_batches_may_be_drawn_ahead() -> None:
    rb = ensemble(9, 9, prefetch=2)
    plain = ensemble(9, 9)
    assert [rb.sample()["action"].tolist() for _ in range(6)] == [plain.sample()["action"].tolist() for _ in range(6)]
    everything = {"buffer_ids": torch.arange(2).repeat_interleave(9), "index": torch.arange(9).repeat(2)}
    patch = {"next": {"reward": torch.full((18, 1), -1.0)}}
    result = rb.update_if_present(index=everything, generation=torch.zeros(18, dtype=torch.int64), patch=patch)
    assert result.updated_count == 18
    assert rb.sample()["next", "reward"].unique().tolist() == [-1.0], "what was drawn ahead is read again"
    rb.close()


def test_goals_in_hindsight_are_relabelled_by_their_buffer() -> None:
    rows = goal_rows([5, 7, 8])
    rb = ReplayBufferEnsemble(
        her(rows=rows, her_ratio=1.0), her(rows=rows, her_ratio=0.0, seed=1), sample_from_all=True, batch_size=32
    )
    goals = rb.sample()["desired_goal"]
    assert (goals[0] >= 0).all()
    assert (goals[1] == -1).all()


def test_it_stays_on_the_cpu_whatever_torch_takes_for_its_default() -> None:
    with torch.device("meta"):
        rb = ReplayBufferEnsemble(
            member(0, 0, sampler=PrioritizedSampler(10, 1.0, 1.0)), member(1, 0), routing_key="who", batch_size=8
        )
    rows = routed_rows([0, 1] * 4)
    with torch.device("meta"):
        written = rb.extend(rows)
        sample = rb.sample()
        assert {value.device.type for value in (*sample.values(True, True), *written.values())} == {"cpu"}
        assert rb.update_priority(sample["index"], 2.0, generation=sample["index_generation"]).updated.shape == (2, 4)
        patch = {"action": sample["action"]}
        rb.update_if_present(index=sample["index"], generation=sample["index_generation"], patch=patch)
        assert rb[{"buffer_ids": [0], "index": [1]}]["action"].tolist() == [2]
        rb.end_streams()
        assert rb.query(traj.length > 0)
        rb.load_state_dict(rb.state_dict())
