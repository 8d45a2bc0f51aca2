"""end_streams: the newest step of everything that is being written becomes the last of its episode."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from replay_service import (
    ImmutableDatasetWriter,
    LayoutError,
    LazyTensorStorage,
    ListStorage,
    ReplayBufferEnsemble,
    SliceSampler,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TensorStorage,
)
from tests.buffer.ensembles import member
from tests.rows import stamped_rows


def _open_rows(rows: int, stamp: int = 0) -> Any:
    data = stamped_rows(rows, stamp)
    for name in ("done", "terminated", "truncated"):
        data["next", name] = torch.zeros(rows, 1, dtype=torch.bool)
    return data


def _flags(buffer: TensorDictReplayBuffer, name: str) -> list[bool]:
    return buffer[:]["next", name].flatten().tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("rows", "newest"), [(3, 2), (10, 9), (13, 2)])
def test_the_newest_step_is_cut_off(rows: int, newest: int) -> None:
    rb = ReplayBufferEnsemble(member(0, 0), member(1, 0))
    rb[0].extend(_open_rows(rows))
    written, stamps = rb[0].write_count, rb[0].writer.generations_of(torch.arange(10))
    rb.end_streams()
    for name in ("done", "truncated"):
        assert [slot for slot, flag in enumerate(_flags(rb[0], name)) if flag] == [newest]
    assert not any(_flags(rb[0], "terminated"))
    assert rb[0].write_count == written
    assert torch.equal(stamps, rb[0].writer.generations_of(torch.arange(10)))


def test_slices_do_not_go_over_it() -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(100), sampler=SliceSampler(slice_len=4, end_key=("next", "done"))
    )
    buffer.extend(_open_rows(6))
    rb = ReplayBufferEnsemble(buffer)
    rb.end_streams()
    buffer.extend(_open_rows(6, stamp=50))
    actions = torch.cat([rb.sample(40)["action"].view(-1, 4) for _ in range(10)])
    assert ((actions >= 50).all(1) | (actions < 50).all(1)).all()


def test_ends_that_are_there_stay_as_they_are() -> None:
    rb = ReplayBufferEnsemble(member(0, 0), member(1, 0))
    rb[0].extend(stamped_rows(6))  # the last one is terminated
    rows = _open_rows(3)
    rows["next", "terminated"][2] = True  # and says so in one flag only
    rb[1].extend(rows)
    before = rb[0][:]
    rb.end_streams()
    assert (rb[0][:] == before).all()
    assert (_flags(rb[1], "done"), _flags(rb[1], "truncated")) == ([False, False, True], [False] * 3)


def test_every_lane_has_a_stream() -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(20, ndim=2))
    rows = torch.stack([_open_rows(4), _open_rows(4, stamp=100)])
    rows["next", "done"][1, 3] = rows["next", "terminated"][1, 3] = True
    buffer.extend(rows)
    ReplayBufferEnsemble(buffer).end_streams()
    data = buffer[:]
    assert data["next", "done"].squeeze(-1).tolist() == [[False, False, False, True]] * 2
    assert data["next", "truncated"].squeeze(-1).tolist() == [[False, False, False, True], [False] * 4]


def test_other_names_and_records_without_some_flags() -> None:
    buffer = member(0, 0)
    rows = _open_rows(3).exclude(("next", "truncated"), ("next", "terminated"))
    rows["over"] = torch.zeros(3, dtype=torch.bool)
    buffer.extend(rows)
    rb = ReplayBufferEnsemble(buffer)
    rb.end_streams(end_key="over", truncated_key=None, terminated_key=None)
    rb.end_streams()
    assert (buffer[:]["over"].tolist(), _flags(buffer, "done")) == ([False, False, True], [False, False, True])


def test_fixed_data_sets_are_passed_over() -> None:
    fixed = TensorDictReplayBuffer(storage=TensorStorage(_open_rows(3)), writer=ImmutableDatasetWriter())
    ReplayBufferEnsemble(fixed, member(1, 0)).end_streams()
    assert not any(_flags(fixed, "done"))


def _other(kind: str) -> TensorDictReplayBuffer:
    if kind == "best":
        buffer = TensorDictReplayBuffer(
            storage=LazyTensorStorage(5), writer=TensorDictMaxValueWriter(rank_key=("next", "reward"))
        )
    elif kind == "list":
        buffer = TensorDictReplayBuffer(storage=ListStorage(5))
    elif kind == "used up":
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(5), consume_after_n_samples=1)
    else:
        buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(5))
    rows = _open_rows(3)
    if kind == "no flags":
        rows = rows.exclude(("next", "done"))
    if kind == "numbers":
        rows["next", "done"] = torch.zeros(3, 1)
    buffer.extend(rows)
    return buffer


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("best", ValueError, r"rbs\[1\] .* TensorDictMaxValueWriter"),
        ("list", TypeError, r"rbs\[1\] must have a columnar storage"),
        ("used up", ValueError, "ConsumingSampler"),
        ("no flags", KeyError, r"next\.done"),
        ("numbers", LayoutError, r"next\.done must hold flags; got float32"),
    ],
)
def test_what_has_no_streams_is_refused_and_nothing_is_changed(kind: str, error: type[Exception], words: str) -> None:
    one = member(0, 0)
    one.extend(_open_rows(3))
    with pytest.raises(error, match=words):
        ReplayBufferEnsemble(one, _other(kind)).end_streams()
    assert not any(_flags(one, "done"))


def test_keys_must_differ() -> None:
    with pytest.raises(ValueError, match="must differ"):
        ReplayBufferEnsemble(member(0, 1)).end_streams(truncated_key=("next", "done"))
