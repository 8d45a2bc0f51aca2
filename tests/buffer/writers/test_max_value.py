"""TensorDictMaxValueWriter: of all that was offered the best stay."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from replay_service import (
    CompressedListStorage,
    ConsumingSampler,
    LayoutError,
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    PriorityError,
    ReplayBuffer,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    SliceSampler,
    Storage,
    TensorDictMaxValueWriter,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from replay_service.buffer.units import Sequence
from tests.contracts.writer import WriterContract

STORAGES = [LazyTensorStorage, LazyMemmapStorage, ListStorage, LazyStackStorage, CompressedListStorage]


class TestTensorDictMaxValueWriter(WriterContract):
    def make(self) -> TensorDictMaxValueWriter:
        return TensorDictMaxValueWriter()


def _ranked(*ranks: float) -> TensorDict:
    """Records that are ranked by `rank`; `is` says the same, so that a torn row shows."""
    values = torch.tensor(ranks, dtype=torch.float32)
    return TensorDict({"rank": values, "is": values}, [len(ranks)])


def _best(storage: Storage | None = None, **settings: Any) -> TensorDictReplayBuffer:
    writer = TensorDictMaxValueWriter("rank", **settings)
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(3) if storage is None else storage, writer=writer, batch_size=4
    )


def _held(buffer: ReplayBuffer) -> list[float]:
    held = buffer[:]
    assert held["rank"].tolist() == held["is"].tolist()
    return held["rank"].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("storage_class", STORAGES)
def test_better_records_take_the_slots_of_the_worst(storage_class: Any) -> None:
    buffer = _best(storage_class(3))
    assert buffer.extend(_ranked(1, 2, 3)).tolist() == [0, 1, 2]
    assert buffer.extend(_ranked(0, 5, 2)).tolist() == [-1, 0, -1]
    assert buffer.extend(_ranked(0, 0)).tolist() == [-1, -1]
    assert buffer.add(_ranked(0)[0]) == -1
    assert buffer.add(_ranked(9)[0]) == 1
    assert _held(buffer) == [5, 9, 3]
    assert buffer.extend(_ranked(2, 3, 4, 5, 6, 7, 8, 20)).tolist() == [-1, -1, -1, -1, -1, -1, 2, 0]
    assert _held(buffer) == [20, 9, 8]
    assert buffer.write_count == 7
    assert sorted(set(buffer.sample(50)["is"].tolist())) == [8, 9, 20]


def test_more_than_fit_at_once() -> None:
    buffer = _best()
    assert buffer.extend(_ranked(4, 1, 5, 2, 3)).tolist() == [0, -1, 1, -1, 2]
    assert _held(buffer) == [4, 5, 3]


def test_free_slots_are_filled_and_the_worst_replaced_in_one_call() -> None:
    buffer = _best()
    buffer.extend(_ranked(1, 6))
    assert buffer.extend(_ranked(3, 9)).tolist() == [2, 0]
    assert _held(buffer) == [9, 6, 3]


def test_of_equal_ranks_the_first_stay() -> None:
    buffer = _best()
    buffer.extend(_ranked(2, 2, 1))
    assert buffer.extend(_ranked(2, 2, 1)).tolist() == [2, -1, -1]
    assert buffer.extend(_ranked(2)).tolist() == [-1]


def test_without_bound_everything_stays() -> None:
    buffer = _best(ListStorage())
    for start in range(0, 300, 3):
        buffer.extend(_ranked(*map(float, range(start, start + 3))))
    assert len(buffer) == 300


@pytest.mark.parametrize(
    ("reduction", "slots"),
    [("sum", [-1, 0, 1]), ("mean", [-1, 0, 1]), ("max", [0, -1, 1]), ("median", [0, 1, -1]), ("min", [0, 1, -1])],
)
@pytest.mark.parametrize("storage_class", [LazyTensorStorage, ListStorage])
def test_reductions(storage_class: Any, reduction: str, slots: list[int]) -> None:
    buffer = _best(storage_class(2), reduction=reduction)
    ranks = torch.tensor([[1.0, 5.0, 0.0], [3.0, 3.0, 3.0], [0.0, 0.0, 10.0]])
    assert buffer.extend(TensorDict({"rank": ranks}, [3])).tolist() == slots


def test_ragged_trajectories_are_ranked_by_their_return() -> None:
    writer = TensorDictMaxValueWriter()
    buffer = ReplayBuffer(storage=LazyStackStorage(2), writer=writer)
    episodes = [TensorDict({("next", "reward"): torch.full((n, 1), r)}, [n]) for n, r in ((3, 1.0), (5, 1.0), (2, 4.0))]
    assert buffer.extend(episodes).tolist() == [-1, 0, 1]
    assert writer.get_insert_index(episodes[1]) is None
    assert writer.get_insert_index(TensorDict({("next", "reward"): torch.full((9, 1), 1.0)}, [9])) == 0


def test_get_insert_index_writes_nothing() -> None:
    buffer = _best()
    writer = buffer.writer
    assert isinstance(writer, TensorDictMaxValueWriter)
    assert writer.get_insert_index(_ranked(1)[0]) == 0
    buffer.extend(_ranked(1, 2, 3))
    assert (writer.get_insert_index(_ranked(1.5)[0]), writer.get_insert_index(_ranked(1)[0])) == (0, None)
    assert _held(buffer) == [1, 2, 3]
    assert buffer.write_count == 3


@pytest.mark.parametrize("storage_class", STORAGES)
def test_it_goes_on_writing_after_a_load(storage_class: Any) -> None:
    buffer, other = _best(storage_class(3)), _best(storage_class(3))
    buffer.extend(_ranked(4, 6, 5))
    other.extend(_ranked(100, 200))
    state = buffer.state_dict()
    other.load_state_dict(state)
    assert other.extend(_ranked(3, 7)).tolist() == [-1, 0]
    assert _held(other) == [7, 6, 5]
    assert _held(buffer) == [4, 6, 5]
    third = _best(storage_class(3))
    third.load_state_dict(state)
    assert _held(third) == [4, 6, 5]


def test_empty_and_add() -> None:
    buffer = _best(track_generations=True)
    buffer.extend(_ranked(7, 8, 9))
    buffer.empty()
    assert buffer.add(_ranked(1)[0]) == 0
    assert buffer.extend(_ranked(0, 2, 3)).tolist() == [-1, 1, 2]
    assert _held(buffer) == [1, 2, 3]


def test_what_the_storage_holds_counts_as_offered() -> None:
    storage = LazyTensorStorage(3)
    storage.set(range(3), _ranked(5, 1, 3))
    assert _best(storage).extend(_ranked(2)).tolist() == [1]
    ring = TensorDictReplayBuffer(storage=LazyTensorStorage(3), writer=RoundRobinWriter())
    ring.extend(_ranked(5, 1, 3))
    ring.set_writer(TensorDictMaxValueWriter("rank"))
    assert ring.extend(_ranked(4, 2)).tolist() == [1, -1]


def test_records_changed_in_place_are_ranked_again() -> None:
    buffer = _best(track_generations=True)
    buffer.extend(_ranked(1, 2, 3))
    buffer[0] = _ranked(10)[0]
    assert buffer.extend(_ranked(4)).tolist() == [1]
    buffer.set_at_("rank", torch.tensor([0.0]), torch.tensor([2]))
    assert buffer.extend(_ranked(1)).tolist() == [2]
    index = torch.tensor([0])
    buffer.update_if_present(
        index=index, generation=buffer.writer.generations_of(index), patch={"rank": torch.tensor([-1.0])}
    )
    assert buffer.extend(_ranked(0)).tolist() == [0]


def test_one_stamp_per_write() -> None:
    buffer = _best(track_generations=True)
    buffer.extend(_ranked(1, 2))
    buffer.extend(_ranked(5, 6, 7, 0))
    _, info = buffer.sample(return_info=True)
    assert buffer.writer.generations_of(torch.arange(4)).tolist() == [1, 1, 0, -1]
    assert (info["index_generation"] == buffer.writer.generations_of(info["index"])).all()
    before = buffer.writer.generations_of(torch.arange(3))
    buffer.empty()
    assert (buffer.writer.generations_of(torch.arange(3)) > before).all()


def test_priorities_of_rejected_records_are_left_out() -> None:
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1.0,
        beta=1.0,
        eps=0.0,
        storage=LazyTensorStorage(3),
        writer=TensorDictMaxValueWriter("rank"),
        batch_size=8,
    )
    buffer.extend(_ranked(1, 2, 3).set("td_error", torch.ones(3)))
    buffer.extend(_ranked(0, 9, 0).set("td_error", torch.tensor([5.0, 0.0, 5.0])))
    assert 0 not in buffer.sample(200)["index"].tolist(), "slot 0 has the priority 0 of its new record"
    buffer.extend(_ranked(-1, -2).set("td_error", torch.tensor([5.0, 5.0])))
    assert 0 not in buffer.sample(200)["index"].tolist()


def test_epochs_go_on() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(3),
        sampler=SamplerWithoutReplacement(),
        writer=TensorDictMaxValueWriter("rank"),
        batch_size=3,
    )
    buffer.extend(_ranked(1, 2, 3))
    buffer.extend(_ranked(0, 0, 4, 0))
    assert sorted(buffer.sample()["is"].tolist()) == [2, 3, 4]


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (_ranked(9, math.nan), PriorityError, r"rank \(nan in row 1\)"),
        (TensorDict({"is": torch.ones(2)}, [2]), LayoutError, "rank"),
    ],
)
@pytest.mark.parametrize("storage_class", STORAGES)
def test_what_cannot_be_ranked_changes_nothing(storage_class: Any, data: Any, error: type, words: str) -> None:
    buffer = _best(storage_class(3))
    buffer.extend(_ranked(1, 2, 3))
    with pytest.raises(error, match=words):
        buffer.extend(data)
    with pytest.raises(error):
        buffer.add(data[1])
    assert _held(buffer) == [1, 2, 3]
    assert buffer.write_count == 3
    assert buffer.extend(_ranked(9)).tolist() == [0]


@pytest.mark.parametrize(
    ("storage", "data"),
    [
        (ListStorage(3), ["text", "more"]),
        (ListStorage(3), torch.ones(2)),
        (ListStorage(3), [_ranked(1)[0], {"rank": 1}]),
        (ListStorage(3), [TensorDict({"rank": "best"}, [])]),
        (LazyTensorStorage(3), torch.ones(2)),
        (LazyTensorStorage(3), {"other": torch.ones(2)}),
        (LazyTensorStorage(3), {"rank": torch.ones(2, dtype=torch.complex64)}),
        (LazyTensorStorage(3), {"rank": torch.ones(2, 0)}),
    ],
)
def test_data_without_a_rank_is_refused_at_the_first_write(storage: Storage, data: Any) -> None:
    buffer = ReplayBuffer(storage=storage, writer=TensorDictMaxValueWriter("rank"))
    with pytest.raises(LayoutError, match="rank"):
        buffer.extend(data)
    assert len(buffer) == 0
    assert storage.leaves() is None


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"reduction": "product"}, ValueError, "reduction .'product'. must be one of sum, max, min, mean, median"),
        ({"rank_key": 3}, TypeError, "rank_key"),
        ({"rank_key": ()}, TypeError, "rank_key"),
        ({"rank_key": ("a", 1)}, TypeError, "rank_key"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        TensorDictMaxValueWriter(**settings)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"storage": LazyTensorStorage(4, ndim=2)}, r"storage \(ndim 2\) must have one dimension"),
        ({"sampler": SliceSampler(slice_len=2)}, "writer .* must write steps in the order"),
        ({"sample_unit": Sequence(2)}, "writer .* must write steps in the order"),
        ({"sampler": ConsumingSampler()}, "writer .* must be able to write to freed slots"),
        ({"consume_after_n_samples": 1}, "writer .* must be able to write to freed slots"),
        ({"shared": True}, "share must have a ring writer"),
    ],
)
def test_parts_that_do_not_go_together_are_refused_at_construction(parts: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        ReplayBuffer(**{"storage": LazyTensorStorage(4), **parts}, writer=TensorDictMaxValueWriter())


def test_exchanges_that_do_not_go_together_change_nothing() -> None:
    slices = ReplayBuffer(storage=LazyTensorStorage(4), sampler=SliceSampler(slice_len=2))
    lanes = ReplayBuffer(storage=LazyTensorStorage(4, ndim=2))
    best = _best()
    held, sampler = best.storage, best.sampler
    for call in (
        lambda: slices.set_writer(TensorDictMaxValueWriter()),
        lambda: lanes.set_writer(TensorDictMaxValueWriter()),
        lambda: best.set_sampler(SliceSampler(slice_len=2)),
        lambda: best.set_storage(LazyTensorStorage(4, ndim=2)),
    ):
        with pytest.raises(ValueError, match="must"):
            call()
    assert isinstance(slices.writer, RoundRobinWriter)
    assert isinstance(lanes.writer, RoundRobinWriter)
    assert (best.storage, best.sampler) == (held, sampler)


@settings(max_examples=60, deadline=None)
@given(
    capacity=st.integers(1, 6),
    batches=st.lists(st.lists(st.integers(0, 9).map(float), min_size=1, max_size=9), max_size=8),
    storage_class=st.sampled_from([LazyTensorStorage, ListStorage]),
)
def test_the_best_of_all_that_was_offered_stay(capacity: int, batches: list[list[float]], storage_class: Any) -> None:
    buffer = _best(storage_class(capacity))
    slots: dict[int, float] = {}
    offered: list[float] = []
    for batch in batches:
        index = buffer.extend(_ranked(*batch)).tolist()
        assert len({slot for slot in index if slot >= 0}) == sum(slot >= 0 for slot in index)
        for slot, rank in zip(index, batch, strict=True):
            if slot >= 0:
                slots[slot] = rank
        offered += batch
        assert _held(buffer) == [slots[slot] for slot in sorted(slots)]
        assert sorted(_held(buffer)) == sorted(offered)[-capacity:]
