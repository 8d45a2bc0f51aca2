"""ReplayBufferEnsemble: how it is made, routed writes, and the buffers behind it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service import (
    ImmutableDatasetWriter,
    LayoutError,
    LazyTensorStorage,
    PrioritizedSampler,
    PriorityError,
    RandomSampler,
    ReplayBufferEnsemble,
    RoundRobinWriter,
    SamplerEnsemble,
    Sequence,
    StorageEnsemble,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TensorStorage,
    WriterEnsemble,
)
from tests.buffer.ensembles import BASE, ensemble, member, routed_rows, stamps_by_member
from tests.rows import stamped_rows


def test_buffers_from_factories() -> None:
    rb = ReplayBufferEnsemble(lambda: member(0, 2), TensorDictReplayBuffer)
    assert (len(rb), rb[1].storage.max_size) == (2, 1000)


def test_buffers_from_parts() -> None:
    storages = StorageEnsemble(
        LazyTensorStorage(10), LazyTensorStorage(10), transforms=[None, lambda data: data.set("second", data["action"])]
    )
    rb = ReplayBufferEnsemble(
        storages=storages,
        samplers=SamplerEnsemble(RandomSampler(), RandomSampler(), p=[1, 0]),
        writers=WriterEnsemble(RoundRobinWriter(), RoundRobinWriter()),
        routing_key="who",
        batch_size=4,
    )
    rb.extend(routed_rows([0, 1, 1]))
    assert rb.sample()["action"].unique().tolist() == [0]
    assert rb[1][:]["second"].tolist() == [1, 2]
    assert rb.storage is storages or rb.storage.storages == storages.storages


def test_a_full_ring_goes_on_where_it_stands() -> None:
    one = member(0, 0, capacity=4)
    one.extend(stamped_rows(6))
    rb = ReplayBufferEnsemble(one, member(1, 0), routing_key="who")
    one.extend(stamped_rows(1, stamp=50))
    assert stamps_by_member(rb)[0] == [4, 5, 50, 3]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: ReplayBufferEnsemble(), TypeError, "storages must be a StorageEnsemble"),
        (lambda: ReplayBufferEnsemble(3), TypeError, r"rbs\[0\] must be a buffer"),
        (
            lambda: ReplayBufferEnsemble(member(0, 1), ensemble(1, 1)),
            TypeError,
            r"rbs\[1\] must be a buffer of this process",
        ),
        (lambda: ReplayBufferEnsemble(*[member(0, 1)] * 2), ValueError, "storage of its own; it comes twice"),
        (lambda: ensemble(1, 1, p=[1]), ValueError, r"p \(\[1\]\) must be one number per buffer"),
        (lambda: ensemble(1, 1, p=[0, 0]), ValueError, "not all zero"),
        (lambda: ensemble(1, 1, p=[1, -1]), ValueError, "not negative"),
        (lambda: ensemble(1, 1, p="most"), ValueError, "'sampleable'"),
        (lambda: ensemble(1, 1, p=[1, 1], sample_from_all=True), ValueError, "sample_from_all"),
        (lambda: ensemble(1, 1, num_buffer_sampled=0), ValueError, "num_buffer_sampled"),
        (lambda: ensemble(1, 1, sample_unit=Sequence(2)), ValueError, "sample_unit .* given to the buffers"),
        (lambda: ensemble(1, 1, consume_after_n_samples=1), ValueError, "consume_after_n_samples"),
        (lambda: ensemble(1, 1, routing_key="a", routing_dim=0), ValueError, "routing_key"),
        (lambda: ensemble(1, 1, collate_fns=[None, None]), TypeError, "collate_fns must be left out"),
    ],
)
def test_what_is_no_ensemble_is_refused(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()


def test_records_go_where_their_key_says() -> None:
    rb = ensemble(0, 0, 0, routing_key="who")
    written = rb.extend(routed_rows([2, 0, 2, 2, 0]))
    assert written.batch_size == (5,)
    assert written["buffer_ids"].tolist() == [2, 0, 2, 2, 0]
    assert written["index"].tolist() == [0, 0, 1, 2, 1]
    assert written["index_generation"].tolist() == [0] * 5
    assert stamps_by_member(rb) == [[1, 4], [], [0, 2, 3]]
    assert rb[written]["action"].tolist() == [0, 1, 2, 3, 4]
    assert (len(rb), rb.write_count) == (5, 5)
    one = rb.add(routed_rows([1], stamp=9)[0])
    assert (int(one["buffer_ids"]), int(one["index"])) == (1, 0)
    assert rb.submit_extend(routed_rows([1])).result()["index"].tolist() == [1]


def test_records_go_where_their_place_says() -> None:
    rb = ensemble(0, 0, routing_dim=0)
    written = rb.extend(torch.stack([stamped_rows(3), stamped_rows(3, stamp=50)]))
    assert written["index"].tolist() == [0, 1, 2, 0, 1, 2]
    assert stamps_by_member(rb) == [[0, 1, 2], [50, 51, 52]]
    with pytest.raises(RuntimeError, match="routing_dim"):
        rb.add(stamped_rows(1)[0])


def test_a_row_overwritten_by_the_same_call_is_stale() -> None:
    rb = ReplayBufferEnsemble(member(0, 0, capacity=3), member(1, 0, capacity=3), routing_key="who")
    written = rb.extend(routed_rows([0, 0, 0, 1, 0, 0]))
    assert written["index"].tolist() == [0, 1, 2, 0, 0, 1]
    assert written["index_generation"].tolist() == [0, 0, 0, 0, 1, 1]
    result = rb.update_if_present(
        index=written, generation=written["index_generation"], patch={"action": torch.full((6,), 7)}
    )
    assert result.updated.tolist() == [False, False, True, True, True, True]


def test_no_rows_are_no_writes() -> None:
    rb = ensemble(2, 2, routing_key="who")
    assert rb.extend(routed_rows([0])[:0]).batch_size == (0,)
    assert len(rb) == 4


def test_without_a_route_nothing_is_written() -> None:
    rb = ensemble(2, 2)
    for call in (lambda: rb.extend(stamped_rows(2)), lambda: rb.add(stamped_rows(1)[0])):
        with pytest.raises(RuntimeError, match=r"routing_key or routing_dim, or write to one buffer, rb\[i\]\.extend"):
            call()
    rb[1].extend(stamped_rows(2, stamp=5))
    assert stamps_by_member(rb)[1] == [BASE, BASE + 1, 5, 6]


def _refusing(place: int) -> tuple[TensorDictReplayBuffer, TensorDict, type[Exception]]:
    """A buffer that refuses rows that the other takes, and such rows."""
    rows = routed_rows([0, 1, 0, 1])
    if place == 0:  # another layout
        other = TensorDictReplayBuffer(storage=LazyTensorStorage(10))
        other.extend(routed_rows([1]).exclude("observation"))
        return other, rows, LayoutError
    if place == 1:  # priorities that are none
        rows["td_error"] = torch.tensor([1.0, 2.0, 3.0, float("nan")])
        other = TensorDictReplayBuffer(storage=LazyTensorStorage(10), sampler=PrioritizedSampler(10, 1.0, 1.0))
        return other, rows, PriorityError
    if place == 2:  # ranks that are none
        rows["next", "reward"][3] = float("nan")
        writer = TensorDictMaxValueWriter(rank_key=("next", "reward"))
        return TensorDictReplayBuffer(storage=LazyTensorStorage(10), writer=writer), rows, PriorityError
    fixed = TensorDictReplayBuffer(storage=TensorStorage(routed_rows([1])), writer=ImmutableDatasetWriter())
    return fixed, rows, RuntimeError


@pytest.mark.parametrize("kind", range(4))
def test_what_one_buffer_refuses_changes_no_other(kind: int) -> None:
    refusing, rows, error = _refusing(kind)
    taking = member(0, 0)
    rb = ReplayBufferEnsemble(taking, refusing, routing_key="who")
    before = len(refusing)
    with pytest.raises(error):
        rb.extend(rows)
    assert (len(taking), taking.write_count, len(refusing)) == (0, 0, before)
    rb.extend(rows[rows["who"] == 0])
    assert stamps_by_member(rb)[0] == [0, 2]


def test_priorities_that_rows_carry_are_theirs() -> None:
    rb = ReplayBufferEnsemble(
        *(member(place, 0, sampler=PrioritizedSampler(10, 1.0, 1.0)) for place in range(2)), routing_key="who"
    )
    rows = routed_rows([0, 1, 0])
    rows["td_error"] = torch.tensor([1.0, 2.0, 3.0])
    rb.extend(rows)
    assert rb[0].sampler.priorities()[:2].tolist() == pytest.approx([1.0, 3.0])
    rb.extend(rows[:1], update_priority=False)
    assert float(rb[0].sampler.priorities()[2]) != 1.0


def test_transforms_on_the_way_in() -> None:
    class Doubling:
        def forward(self, data: TensorDict) -> TensorDict:
            return data

        def inv(self, data: TensorDict) -> TensorDict:
            return data.set("action", data["action"] * 2)

    one = member(0, 0)
    one.append_transform(Doubling())
    rb = ReplayBufferEnsemble(one, member(1, 0), routing_key="who", transform=Doubling())
    rb.extend(routed_rows([0, 1], stamp=1))
    assert (rb[0].storage[0]["action"].item(), rb[1].storage[0]["action"].item()) == (4, 4)


def test_buffers_by_number() -> None:
    rb = ensemble(1, 2, 3, p=[1, 2, 5])
    assert rb[0] is rb.members[0]
    assert rb[-1] is rb.members[2]
    assert rb[torch.tensor(1)] is rb.members[1]
    for index in (slice(1, None), [1, 2], range(1, 3), torch.tensor([1, 2])):
        some = rb[index]
        assert isinstance(some, ReplayBufferEnsemble)
        assert some.members == rb.members[1:]
        assert some.sampler.p.tolist() == pytest.approx([2 / 7, 5 / 7])
        assert (len(some), some.batch_size) == (5, 8)
    assert rb[:].members == rb.members
    assert rb[1, 0]["action"].item() == BASE
    assert rb[:, :1]["action"].tolist() == [[0], [BASE], [2 * BASE]]
    assert rb[..., [0]]["action"].tolist() == [[0], [BASE], [2 * BASE]]


@pytest.mark.parametrize(
    ("index", "error"),
    [
        (3, IndexError),
        (-4, IndexError),
        ([0, 3], IndexError),
        ("action", TypeError),
        (1.0, TypeError),
        (None, TypeError),
    ],
)
def test_what_names_no_buffer_is_refused(index: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="index"):
        ensemble(1, 1, 1)[index]


def test_records_by_name() -> None:
    rb = ensemble(3, 3)
    index = {"buffer_ids": torch.tensor([[1, 0, 1]]), "index": torch.tensor([[0, 2, 2]])}
    assert rb[index]["action"].tolist() == [[BASE, 2, BASE + 2]]
    with pytest.raises(IndexError, match=r"index \(3\)"):
        rb[{"buffer_ids": torch.tensor([0]), "index": torch.tensor([3])}]
