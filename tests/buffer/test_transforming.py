"""Transforms in a buffer: which way they run, on what, and beside what else happens."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest
import torch
from tensordict import TensorDict, tensorclass

from replay_service import (
    EmptyBufferError,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    Sequence,
    SliceSampler,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from replay_service.buffer.transforming import TransformChain
from replay_service.transforms import BurnIn, Compose, MultiStep, RenameKeys, RewardScaling, SelectKeys
from tests.rows import stamped_rows
from tests.transforms.episode_steps import episodes


class Shift(torch.nn.Module):
    """Shaped as another library's transform: a module with `forward` and `inv`."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by
        self.hooked = 0
        self.register_forward_hook(lambda *_: setattr(self, "hooked", self.hooked + 1))

    def forward(self, data: Any) -> Any:
        return data.set("x", data.get("x") + self.by)

    def inv(self, data: Any) -> Any:
        return data.set("x", data.get("x") - self.by)


def doubled(data: Any) -> Any:
    return data.set("x", data["x"] * 2)


def rows(count: int = 4) -> TensorDict:
    return TensorDict({"x": torch.arange(float(count))}, [count])


def buffer(**settings: Any) -> TensorDictReplayBuffer:
    made: TensorDictReplayBuffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10), batch_size=4, **settings)
    return made


def stored(rb: ReplayBuffer) -> list[float]:
    values: list[float] = rb.storage.get(slice(None))["x"].tolist()
    return values


def test_forward_on_the_way_out_and_inverse_on_the_way_in() -> None:
    shift = Shift(10.0)
    rb = buffer(transform=shift)
    given = rows()
    rb.extend(given)
    rb.add(TensorDict({"x": torch.tensor(4.0)}))
    assert stored(rb) == [-10, -9, -8, -7, -6]
    assert given["x"].tolist() == [0, 1, 2, 3]
    sample = rb.sample()
    assert torch.equal(sample["x"], sample["index"].float())
    assert shift.hooked == 1
    assert rb[:]["x"].tolist() == [0, 1, 2, 3, 4]
    assert rb[2]["x"] == 2
    assert rb[torch.tensor([3, 1])]["x"].tolist() == [3, 1]
    assert rb.read_all_in_order(2)["x"].tolist() == [0, 1]


def test_what_is_written_by_index_goes_the_way_in() -> None:
    rb = buffer(transform=Shift(10.0))
    rb.extend(rows())
    rb[:] = rb[:]
    rb.write_all(rb.read_all_in_order())
    rb[1:3] = TensorDict({"x": torch.tensor([5.0, 6.0])}, [2])
    assert stored(rb) == [-10, -5, -4, -7]
    rb.set_("x", 7.0)
    assert stored(rb) == [7.0] * 4


def test_functions_have_no_way_in_unless_inverted() -> None:
    rb = buffer(transform=doubled)
    rb.extend(rows())
    assert stored(rb) == [0, 1, 2, 3]
    assert torch.equal(rb.sample()["x"], rb.sample()["index"] * 2.0) or rb[:]["x"].tolist() == [0, 2, 4, 6]
    rb = buffer()
    rb.append_transform(doubled, invert=True)
    rb.extend(rows())
    assert stored(rb) == [0, 2, 4, 6]
    assert rb[:]["x"].tolist() == [0, 2, 4, 6]


def test_an_inverted_transform_changes_ways() -> None:
    rb = buffer()
    rb.append_transform(Shift(10.0), invert=True)
    rb.extend(rows())
    assert stored(rb) == [10, 11, 12, 13]
    assert rb[:]["x"].tolist() == [0, 1, 2, 3]


def test_the_order_is_the_lists_on_the_way_out_and_backwards_on_the_way_in() -> None:
    rb = buffer(transform=[Shift(1.0)])
    assert rb.append_transform(doubled) is rb
    rb.insert_transform(0, Shift(2.0))
    rb.insert_transform(-1, Shift(3.0))
    rb.extend(rows())
    assert stored(rb) == [-6, -5, -4, -3]
    assert rb[:]["x"].tolist() == [0, 2, 4, 6]
    assert [getattr(part, "by", None) for part in rb.transform] == [2.0, 1.0, 3.0, None]
    assert rb.transform[3] is doubled
    with pytest.raises(IndexError, match=r"index \(9\) must be within the 4"):
        rb.insert_transform(9, doubled)


def test_a_factory_makes_what_cannot_be_sent() -> None:
    rb = buffer(transform_factory=lambda: Compose(Shift(1.0), doubled))
    assert len(rb.transform) == 1
    with pytest.raises(ValueError, match="must not be given together"):
        buffer(transform=doubled, transform_factory=lambda: doubled)
    with pytest.raises(TypeError, match="transform_factory must be a function"):
        buffer(transform_factory=3)
    with pytest.raises(TypeError, match="must be a function or have a forward; got int"):
        buffer(transform=3)


def test_a_transform_that_returns_nothing_is_told_so() -> None:
    rb = buffer(transform=lambda data: None)
    rb.extend(rows())
    with pytest.raises(TypeError, match=r"transform \(<lambda>\) must return the batch"):
        rb.sample()


def test_a_transform_that_fails_on_the_way_in_stores_nothing() -> None:
    rb = buffer()
    rb.append_transform(RenameKeys("y", "z"), invert=True)
    with pytest.raises(KeyError, match=r"key \(y\)"):
        rb.extend(rows())
    assert (len(rb), rb.write_count) == (0, 0)
    with pytest.raises(EmptyBufferError):
        rb.sample()


def test_lists_of_records_go_in_one_by_one_and_come_out_as_a_batch() -> None:
    rb = TensorDictReplayBuffer(storage=ListStorage(10), batch_size=4, transform=Shift(10.0))
    rb.extend([TensorDict({"x": torch.tensor(float(i))}) for i in range(4)])
    assert [record["x"].item() for record in rb.storage.get(slice(None))] == [-10, -9, -8, -7]
    assert rb[:]["x"].tolist() == [0, 1, 2, 3]
    words = ReplayBuffer(storage=ListStorage(4), batch_size=2, transform=lambda batch: [word.upper() for word in batch])
    words.extend(["a", "a"])
    assert words.sample() == ["A", "A"]


def test_tensors_and_tensorclasses_work_too() -> None:
    rb = ReplayBuffer(storage=LazyTensorStorage(4), batch_size=2, transform=lambda batch: batch + 1)
    rb.extend(torch.zeros(3, 2))
    assert rb.sample().tolist() == [[1, 1]] * 2
    kept = ReplayBuffer(storage=LazyTensorStorage(4), batch_size=2, transform=Shift(1.0))
    kept.extend(Point(x=torch.zeros(3), batch_size=[3]))
    assert type(kept.sample()) is Point
    assert kept.sample().x.tolist() == [0, 0]


def test_transforms_see_the_info_and_it_follows_them() -> None:
    seen: list[set[Any]] = []

    def backwards(data: Any) -> Any:
        seen.append(set(data.keys(True, True)))
        return data.flip(0)

    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(40), batch_size=10, sampler=SliceSampler(slice_len=5, end_key=("next", "done")),
        transform=backwards, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    rb.extend(episodes(20, 20))
    sample, info = rb.sample(return_info=True)
    assert {"index", ("next", "truncated")} <= seen[0]
    assert torch.equal(sample["index"], info["index"])
    assert torch.equal(sample["next", "truncated"], info["next", "truncated"])
    assert sample["next", "truncated"].flatten().nonzero().flatten().tolist() == [0, 5]


def test_what_a_transform_left_out_of_the_info_comes_back_if_it_still_fits() -> None:
    rb = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, storage=LazyTensorStorage(10), batch_size=4)
    rb.append_transform(SelectKeys("action"))
    rb.extend(stamped_rows(8))
    sample = rb.sample()
    assert set(sample.keys()) == {"action", "index", "priority_weight"}
    sample["td_error"] = torch.ones(4)
    rb.update_tensordict_priority(sample)
    rb.append_transform(lambda data: data.select("action")[:2])
    sample, info = rb.sample(return_info=True)
    assert set(sample.keys()) == {"action"}
    assert not {"index", "priority_weight"} & set(info)


def test_windows_of_a_sample_unit_are_neighbours_of_their_own() -> None:
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(40), batch_size=8, sample_unit=Sequence(4, burn_in=2),
        transform=[MultiStep(3, 0.5), BurnIn([], 2, slice_len=6)], generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    rb.extend(episodes(9, 9, 9))
    sample, info = rb.sample(return_info=True)
    assert sample.batch_size == (32,)
    assert torch.equal(info["validity_mask"], sample["validity_mask"])
    assert sample["learning_mask"].all()
    observation = sample["observation"][:, 0]
    for row in range(32):
        window = slice(row, row - row % 4 + 4)
        real = int(sample["validity_mask"][window].sum())
        if sample["validity_mask"][row]:
            ahead = min(3, real, int(9 - observation[row] % 100))
            assert sample["steps_to_next_obs"][row] == ahead
            assert sample["next", "observation"][row, 0] == observation[row] + ahead


def test_coordinates_of_lanes_follow_transforms() -> None:
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(60, ndim=2), batch_size=20, sampler=SliceSampler(slice_len=5, end_key=("next", "done")),
        transform=BurnIn([], 2, slice_len=5),
    )  # fmt: skip
    rb.extend(torch.stack([episodes(20), episodes(8, 12)]))  # type: ignore[call-overload]
    sample, info = rb.sample(return_info=True)
    assert [part.shape for part in info["index"]] == [(12,), (12,)]
    assert torch.equal(torch.stack(info["index"], 1), sample["index"])
    stored = rb.storage.get(info["index"])
    assert torch.equal(stored["observation"], sample["observation"])


def test_a_plain_buffers_transforms_see_the_data_alone() -> None:
    seen: list[set[Any]] = []
    rb = ReplayBuffer(storage=LazyTensorStorage(10), batch_size=4)
    rb.append_transform(lambda data: seen.append(set(data.keys())) or data)
    rb.extend(rows())
    _, info = rb.sample(return_info=True)
    assert seen == [{"x"}]
    assert "index" in info


def test_what_a_service_may_do_depends_on_the_transforms() -> None:
    rb = buffer()
    rb.extend(rows())
    assert rb.dense_leaves() is not None
    assert rb.takes_rows()
    rb.append_transform(RewardScaling(0.0, 1.0))
    assert rb.dense_leaves() is None
    assert rb.takes_rows()
    rb.append_transform(Shift(1.0))
    assert not rb.takes_rows()


def test_a_buffer_with_transforms_is_copied_with_them() -> None:
    rb = buffer(transform=[RenameKeys("x", "y")])
    rb.extend(rows())
    rb.append_transform(RenameKeys("y", "z"), invert=False)
    copy = pickle.loads(pickle.dumps(rb))
    assert copy[:]["z"].tolist() == [0, 1, 2, 3]


def test_transforms_run_outside_the_buffers_lock_and_one_call_at_a_time() -> None:
    inside, most, written = [0], [0], threading.Event()
    started = threading.Barrier(2)

    def slow(data: Any) -> Any:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        if not written.is_set():
            started.wait(10)
            assert written.wait(10)
        inside[0] -= 1
        return data

    rb = buffer(transform=slow)
    rb.extend(rows())
    threads = [threading.Thread(target=rb.sample) for _ in range(3)]
    for thread in threads:
        thread.start()
    started.wait(10)
    rb.extend(rows())  # while a sample is held up in its transform
    written.set()
    for thread in threads:
        thread.join(10)
    assert len(rb) == 8
    assert most == [1]


def test_transforms_without_state_run_side_by_side() -> None:
    both = threading.Barrier(2)

    class Meeting:
        stateful = False

        def forward(self, data: Any) -> Any:
            both.wait(10)
            return data

    rb = buffer(transform=Meeting())
    rb.extend(rows())
    threads = [threading.Thread(target=rb.sample) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert not both.broken


def test_a_running_call_goes_on_with_the_chain_it_began_with() -> None:
    chain = TransformChain()
    chain.insert(0, lambda data: chain.insert(1, doubled) or data)
    assert chain.forward(rows())["x"].tolist() == [0, 1, 2, 3]
    assert len(chain) == 2


@tensorclass
class Point:
    x: torch.Tensor
