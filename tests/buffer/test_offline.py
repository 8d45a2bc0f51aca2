"""OfflineToOnlineReplayBuffer: a part of every batch from a fixed data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service import (
    EmptyBufferError,
    LayoutError,
    LazyTensorStorage,
    ListStorage,
    OfflineToOnlineReplayBuffer,
    PrioritizedSampler,
    ReplayBuffer,
    TensorDictReplayBuffer,
    open_offline_file,
)
from tests.buffer.ensembles import member
from tests.buffer.offline_files.recorded import write_minari
from tests.rows import assert_rows_are_whole, stamped_rows

ONLINE = 1000


def _both(offline: int = 20, online: int = 20, **settings: Any) -> OfflineToOnlineReplayBuffer:
    settings = {"online_capacity": 50, "batch_size": 8, "generator": torch.Generator().manual_seed(0), **settings}
    rb = OfflineToOnlineReplayBuffer(member(0, offline, capacity=50), **settings)
    if online:
        rb.extend(stamped_rows(online, stamp=ONLINE))
    return rb


def test_the_document_says() -> None:
    offline = ReplayBuffer(storage=LazyTensorStorage(1000))
    offline.extend(TensorDict({"observation": torch.randn(1000, 4)}, [1000]))
    rb = OfflineToOnlineReplayBuffer(offline_dataset=offline, online_capacity=500, offline_fraction=0.5, batch_size=32)
    rb.extend(TensorDict({"observation": torch.randn(10, 4)}, [10]))
    assert rb.sample(32).batch_size == (32,)
    assert len(rb) == 1010


@pytest.mark.parametrize(
    ("fraction", "batch", "expected"), [(0.5, 8, 4), (0.25, 8, 2), (0.1, 8, 1), (0.01, 8, 0), (0.99, 8, 8)]
)
def test_every_batch_has_its_part(fraction: float, batch: int, expected: int) -> None:
    rb = _both(offline_fraction=fraction)
    for _ in range(5):
        sample, info = rb.sample(batch, return_info=True)
        assert sample.batch_size == (batch,)
        assert_rows_are_whole(sample)
        is_new = sample["action"] >= ONLINE
        assert is_new.tolist() == [False] * expected + [True] * (batch - expected)
        index = sample["index"]
        assert torch.equal(index["buffer_ids"], is_new.long())
        assert torch.equal(index["index"] + index["buffer_ids"] * ONLINE, sample["action"])
        assert torch.equal(info["index"]["index"], index["index"])


def test_one_buffer_gives_all_as_long_as_the_other_has_none() -> None:
    assert (_both(online=0).sample()["action"] < ONLINE).all()
    assert (_both(offline=0).sample()["action"] >= ONLINE).all()
    with pytest.raises(EmptyBufferError):
        _both(0, 0).sample()
    assert not _both(0, 0).can_sample()


def test_the_data_set_fades_out() -> None:
    rb = _both(offline_fraction=0.5)
    fractions = []
    for step in (0, 25, 50, 100, 200):
        rb.anneal(step, 100)
        fractions.append(rb.offline_fraction)
        assert int((rb.sample()["action"] < ONLINE).sum()) == round(8 * rb.offline_fraction)
    assert fractions == pytest.approx([0.5, 0.375, 0.25, 0.0, 0.0])
    for step, total in ((-1, 10), (1, 0)):
        with pytest.raises(ValueError, match="total_steps"):
            rb.anneal(step, total)


def test_writes_go_to_the_growing_buffer() -> None:
    rb = _both(online=0)
    assert rb.extend(stamped_rows(3, stamp=5)).tolist() == [0, 1, 2]
    assert rb.add(stamped_rows(1, stamp=9)[0]) == 3
    assert (len(rb), len(rb.offline_buffer), len(rb.online_buffer), rb.write_count) == (24, 20, 4, 24)
    assert rb[:]["action"].tolist() == [5, 6, 7, 9]
    rb[0] = stamped_rows(1, stamp=50)[0]
    assert rb[[0, 1]]["action"].tolist() == [50, 6]
    index = {"buffer_ids": torch.tensor([0, 1]), "index": torch.tensor([4, 0])}
    assert rb[index]["action"].tolist() == [4, 50]
    rb.empty()
    assert (len(rb.offline_buffer), len(rb.online_buffer)) == (20, 0)


def test_counts_of_both() -> None:
    stats = _both().stats()
    assert (stats["size"], stats["offline_size"], stats["online_size"]) == (40, 20, 20)
    assert (stats["num_buffers"], stats["offline_fraction"], stats["capacity"]) == (2, 0.5, 100)


def test_a_sample_may_be_extended_again() -> None:
    rb = _both()
    assert rb.extend(rb.sample()).tolist() == list(range(20, 28))


def test_updates_reach_both() -> None:
    offline = member(0, 20, capacity=50, sampler=PrioritizedSampler(50, 1.0, 1.0, eps=0.0))
    rb = OfflineToOnlineReplayBuffer(offline, online_capacity=50, batch_size=8)
    rb.extend(stamped_rows(20, stamp=ONLINE))
    sample = rb.sample()
    assert sample["priority_weight"][4:].tolist() == [1.0] * 4
    sample["td_error"] = torch.arange(8.0) + 2
    rb.update_tensordict_priority(sample)
    slot = int(sample["index", "index"][3])
    assert float(offline.sampler.priorities()[slot]) == 5.0
    assert rb.update_priority(torch.tensor([0, 1]), 3.0).updated.tolist() == [False, False], "slots alone: the new ones"
    rb.mark_update(torch.tensor([0]))


def test_transforms_see_the_whole_batch() -> None:
    rb = _both(transform=lambda data: data.set("count", torch.full((8,), data.shape[0])))
    assert rb.sample()["count"].tolist() == [8] * 8


def test_steps_from_memory_and_from_a_file(tmp_path: Path) -> None:
    path = write_minari(tmp_path / "cartpole.hdf5")
    with open_offline_file(path) as file:
        steps = file[:]
    for given in (path, str(path), steps):
        rb = OfflineToOnlineReplayBuffer(given, online_capacity=100, batch_size=16)
        assert (rb.offline_buffer[:] == steps).all()
        with pytest.raises(RuntimeError, match="fixed"):
            rb.offline_buffer.extend(steps[:1])
    assert len(OfflineToOnlineReplayBuffer(lambda: member(0, 9), online_capacity=100)) == 9
    rb = OfflineToOnlineReplayBuffer(path, online_storage=LazyTensorStorage(100), batch_size=16)
    rb.extend(steps[:10])
    assert rb.sample()["next", "reward"].shape == (16, 1)
    assert [t.length for t in rb.query()][:3] == [t.length for t in rb.offline_buffer.query()][:3]


def test_other_entries_are_told_apart() -> None:
    rb = _both(online=0)
    rb.extend(stamped_rows(9).exclude(("next", "reward")))
    with pytest.raises(
        LayoutError, match=r"online_buffer must have the entries of offline_buffer.*lacks \['next.reward'\]"
    ):
        rb.sample()


def test_records_that_are_no_tensordicts() -> None:
    offline = ReplayBuffer(storage=LazyTensorStorage(10))
    offline.extend(torch.zeros(5))
    rb = OfflineToOnlineReplayBuffer(offline, online_storage=ListStorage)
    rb.extend(torch.ones(4))
    data, info = rb.sample(6, return_info=True)
    assert data.tolist() == [0.0] * 3 + [1.0] * 3
    assert info["index"]["buffer_ids"].tolist() == [0] * 3 + [1] * 3


def test_a_loaded_one_goes_on_alike() -> None:
    rb, other = _both(), _both(offline=3, online=0, generator=torch.Generator().manual_seed(9))
    rb.anneal(1, 4)
    rb.sample()
    other.load_state_dict(rb.state_dict())
    assert other.offline_fraction == rb.offline_fraction == 0.375
    for _ in range(20):
        assert rb.sample()["action"].tolist() == other.sample()["action"].tolist()


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({}, ValueError, "exactly one of online_storage and online_capacity"),
        ({"online_capacity": 5, "online_storage": ListStorage}, ValueError, "exactly one"),
        ({"online_capacity": 0}, ValueError, "max_size"),
        ({"online_capacity": 5, "offline_fraction": 0.0}, ValueError, r"offline_fraction \(0.0\)"),
        ({"online_capacity": 5, "offline_fraction": 1.0}, ValueError, "between 0 and 1"),
        ({"online_capacity": 5, "extra": True}, ValueError, r"dataset_kwargs \(\['extra'\]\) must come with the path"),
        ({"online_capacity": 5, "offline_dataset": 3}, TypeError, r"offline_dataset \(int\)"),
        ({"online_capacity": 5, "offline_dataset": "nowhere.hdf5"}, FileNotFoundError, "nowhere.hdf5"),
    ],
)
def test_what_does_not_go_is_refused(settings: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        OfflineToOnlineReplayBuffer(**{"offline_dataset": TensorDictReplayBuffer(), **settings})
