"""Records by index: read in order, overwritten in place, by column, with time where the user has it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from replay_service import (
    LayoutError,
    LazyTensorStorage,
    ListStorage,
    RandomSampler,
    ReplayBuffer,
    TensorDictReplayBuffer,
)


@pytest.fixture
def buffer() -> TensorDictReplayBuffer:
    """Capacity 5, records 0 to 3: `obs` is the number, `next.obs` a row of it."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(5))
    buffer.extend(_rows(4))
    return buffer


def _rows(count: int, start: int = 0) -> TensorDict:
    numbers = torch.arange(start, start + count)
    return TensorDict({"obs": numbers, "next": {"obs": numbers.float()[:, None].repeat(1, 2)}}, [count])


def _obs(buffer: ReplayBuffer) -> list[int]:
    return buffer[:]["obs"].tolist()  # type: ignore[no-any-return]


# -- reading ------------------------------------------------------------------------------------------------------------


def test_the_documents_example() -> None:
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(10))
    assert rb.extend(TensorDict({"obs": torch.arange(3)}, [3])).tolist() == [0, 1, 2]
    data = rb.read_all_in_order()
    assert (data == rb[:]).all()
    data["target"] = data["obs"] + 1
    rb.write_all(data)
    assert (rb[:] == data).all()
    assert rb[:]["target"].tolist() == [1, 2, 3]


def test_storage_order_is_not_writing_order(buffer: TensorDictReplayBuffer) -> None:
    buffer.extend(_rows(3, start=10))
    assert _obs(buffer) == [11, 12, 2, 3, 10]


@pytest.mark.parametrize("end", [0, 1, 4])
def test_read_the_leading_records(buffer: TensorDictReplayBuffer, end: int) -> None:
    assert buffer.read_all_in_order(end)["obs"].tolist() == list(range(end))


@pytest.mark.parametrize("end", [5, -1, True, 1.0, "2"])
def test_end_must_be_filled(buffer: TensorDictReplayBuffer, end: Any) -> None:
    with pytest.raises(ValueError, match=r"end \(.*\) must be in \[0, 4\]"):
        buffer.read_all_in_order(end)
    with pytest.raises(ValueError, match="end"):
        buffer.write_all(_rows(4, start=50), end)
    assert _obs(buffer) == [0, 1, 2, 3]


def test_entries_by_name(buffer: TensorDictReplayBuffer) -> None:
    assert buffer["obs"].tolist() == [0, 1, 2, 3]
    assert buffer["next", "obs"].shape == (4, 2)
    assert buffer["next"].batch_size == (4,)
    with pytest.raises(KeyError):
        buffer["nothing"]


def test_nothing_was_stored_yet() -> None:
    for call in (lambda rb: rb[:], lambda rb: rb[0], lambda rb: rb.read_all_in_order(), lambda rb: rb["obs"]):
        with pytest.raises(IndexError, match="empty"):
            call(TensorDictReplayBuffer(storage=LazyTensorStorage(5)))


def test_an_emptied_buffer_reads_as_no_rows(buffer: TensorDictReplayBuffer) -> None:
    buffer.empty()
    assert buffer[:].batch_size == (0,)
    with pytest.raises(IndexError):
        buffer[0]


def test_lists_of_records_are_collated() -> None:
    buffer = ReplayBuffer(storage=ListStorage(5))
    buffer.extend([torch.tensor(n) for n in range(3)])
    assert buffer[:].tolist() == [0, 1, 2]
    assert buffer[[2, 0]].tolist() == [2, 0]
    assert buffer[1].tolist() == 1


def test_a_record_that_is_a_list_is_one_record() -> None:
    buffer = ReplayBuffer(storage=ListStorage(5))
    buffer.extend([[torch.tensor(1), torch.tensor(2)], [torch.tensor(3)]])
    assert buffer[0] == [torch.tensor(1), torch.tensor(2)]
    columns = ReplayBuffer(storage=LazyTensorStorage(5))
    columns.extend([torch.zeros(3), torch.ones(3)])  # a pytree of two columns
    assert [column.tolist() for column in columns[:]] == [[0, 0, 0], [1, 1, 1]]
    assert [column.tolist() for column in columns.sample(2)] == [[0, 0], [1, 1]]
    assert [column.tolist() for column in columns[1]] == [0, 1]


# -- overwriting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ([1, 3], [0, 50, 2, 51]),
        (slice(0, 2), [50, 51, 2, 3]),
        (slice(None, None, 2), [50, 1, 51, 3]),
        (torch.tensor([-1, 0]), [51, 1, 2, 50]),
        (torch.tensor([True, False, True, False]), [50, 1, 51, 3]),
        ([2, 2], [0, 1, 51, 3]),
    ],
)
def test_records_are_overwritten(buffer: TensorDictReplayBuffer, index: Any, expected: list[int]) -> None:
    buffer[index] = _rows(2, start=50)
    assert _obs(buffer) == expected
    assert buffer[:]["next", "obs"][:, 1].tolist() == expected
    assert buffer.write_count == 4


def test_one_record_is_overwritten(buffer: TensorDictReplayBuffer) -> None:
    buffer[-2] = _rows(1, start=50)[0]
    assert _obs(buffer) == [0, 1, 50, 3]


@pytest.mark.parametrize(
    ("index", "data", "error"),
    [
        ([0, 4], _rows(2, start=50), IndexError),
        ([0], _rows(2, start=50), LayoutError),
        (slice(None), _rows(3, start=50), LayoutError),
        ([0, 1], _rows(2, start=50).exclude("obs"), LayoutError),
        ([0, 1], _rows(2, start=50).update({"more": torch.zeros(2)}), LayoutError),
        (slice(None), {"obs": torch.zeros(4, dtype=torch.int64)}, LayoutError),
        (slice(None), _rows(4, start=50).update({"obs": {"x": torch.zeros(4)}}), LayoutError),
        (slice(None), _rows(4, start=50).update({("obs2", "x"): torch.zeros(4), "obs": torch.zeros(4)}), LayoutError),
        ("obs", torch.zeros(4), TypeError),
    ],
)
def test_refused_overwrites_change_nothing(buffer: TensorDictReplayBuffer, index: Any, data: Any, error: type) -> None:
    before, leaves = buffer[:], buffer.storage.leaves()
    with pytest.raises(error):
        buffer[index] = data
    assert bool((buffer[:] == before).all())
    assert (buffer.storage.leaves(), len(buffer)) == (leaves, 4)


def test_a_new_entry_without_a_place_is_refused_before_anything_is_written(buffer: TensorDictReplayBuffer) -> None:
    data = {"obs": torch.full((4,), 9), "next": {"obs": torch.zeros(4, 2)}, "x": torch.zeros(4)}
    with pytest.raises(LayoutError, match="next"):
        buffer.write_all({**data, "next.deep": torch.zeros(4), "next": torch.zeros(4)})
    assert _obs(buffer) == [0, 1, 2, 3]
    buffer.write_all(data)
    assert _obs(buffer) == [9] * 4
    assert buffer["x"].tolist() == [0] * 4


def test_new_entries_start_as_zeros_behind_the_end(buffer: TensorDictReplayBuffer) -> None:
    data = buffer.read_all_in_order(2)
    data["next", "target"] = torch.tensor([7.0, 8.0])
    buffer.write_all(data, end=2)
    assert buffer["next", "target"].tolist() == [7, 8, 0, 0]
    with pytest.raises(LayoutError, match=r"missing \['next\.target'\]"):
        buffer.extend(_rows(1))
    assert buffer.sample(3)["next", "target"].shape == (3,)


def test_columns_are_written_by_name(buffer: TensorDictReplayBuffer) -> None:
    assert buffer.set_at_("obs", torch.tensor([70, 71]), [0, 2]) is buffer
    assert _obs(buffer) == [70, 1, 71, 3]
    buffer.set_at_(("next", "obs"), torch.tensor([5.0, 6.0]), slice(1, 3))  # one row for all of them
    assert buffer["next", "obs"].tolist() == [[0, 0], [5, 6], [5, 6], [3, 3]]
    buffer.set_at_("obs", 8, 3)
    assert buffer.set_(("next", "obs"), torch.zeros(4, 2)) is buffer
    assert _obs(buffer) == [70, 1, 71, 8]
    assert float(buffer["next", "obs"].abs().sum()) == 0


@pytest.mark.parametrize(
    ("key", "value", "index", "error"),
    [
        ("obs", torch.zeros(2), [0, 1], LayoutError),
        ("obs", torch.zeros(3, dtype=torch.int64), [0, 1], LayoutError),
        ("nothing", 1, [0], KeyError),
        ("next", 1, [0], KeyError),
        ("obs", 1, [4], IndexError),
    ],
)
def test_refused_columns_change_nothing(
    buffer: TensorDictReplayBuffer, key: str, value: Any, index: Any, error: type
) -> None:
    with pytest.raises(error):
        buffer.set_at_(key, value, index)
    assert _obs(buffer) == [0, 1, 2, 3]


def test_some_entries_are_updated(buffer: TensorDictReplayBuffer) -> None:
    assert buffer.update_(TensorDict({"obs": torch.arange(4) * 2}, [4])) is buffer
    assert _obs(buffer) == [0, 2, 4, 6]
    buffer.update_(_rows(4, start=30), keys_to_update=["next"])
    assert (_obs(buffer), buffer["next", "obs"][:, 0].tolist()) == ([0, 2, 4, 6], [30, 31, 32, 33])
    for wrong, error in (
        ({"next": {"obs": torch.zeros(4, 2)}, "obs": torch.zeros(4)}, LayoutError),
        ({"obs": torch.zeros(3, dtype=torch.int64)}, LayoutError),
        ({"obs": torch.zeros(4, dtype=torch.int64), "nothing": torch.zeros(4)}, KeyError),
    ):
        with pytest.raises(error):
            buffer.update_(wrong)
    assert (_obs(buffer), buffer["next", "obs"][:, 0].tolist()) == ([0, 2, 4, 6], [30, 31, 32, 33])


def test_lists_have_no_columns_to_write() -> None:
    buffer = ReplayBuffer(storage=ListStorage(5))
    buffer.extend([torch.tensor(1)])
    with pytest.raises(TypeError, match="set_at_ must have a columnar storage; got ListStorage"):
        buffer.set_at_("a", 1, 0)
    with pytest.raises(TypeError, match="update_ must have"):
        buffer.update_({"a": torch.ones(1)})
    buffer.write_all([torch.tensor(5)])
    buffer[0] = torch.tensor(6)
    assert buffer[:].tolist() == [6]


def test_the_sampler_is_told_of_every_overwrite(buffer: TensorDictReplayBuffer) -> None:
    told: list[list[int]] = []

    class Telling(RandomSampler):
        def mark_update(self, index: torch.Tensor, *, storage: Any = None) -> None:
            told.append(index.tolist())

    buffer.set_sampler(Telling())
    buffer[[3, 1]] = _rows(2)
    buffer.write_all(_rows(2), end=2)
    buffer.set_at_("obs", 1, [2])
    buffer.update_({"obs": torch.arange(4)})
    buffer.mark_update(torch.tensor([0]))
    buffer.storage[[1]] = _rows(1)
    assert told == [[3, 1], [0, 1], [2], [0, 1, 2, 3], [0], [1]]


# -- time -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def lanes() -> TensorDictReplayBuffer:
    """Two lanes of three steps, handed over as [lane, time]; record (t, l) holds 10 t + l."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(8, ndim=2))
    index = buffer.extend(TensorDict({"v": torch.tensor([[0, 10, 20], [1, 11, 21]])}, [2, 3]))
    assert index.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [2, 0], [2, 1]]
    return buffer


def test_batches_have_time_where_the_user_has_it(lanes: TensorDictReplayBuffer) -> None:
    assert lanes.dim_extend == 1
    assert lanes.storage.column("v")[:3].tolist() == [[0, 1], [10, 11], [20, 21]]
    assert lanes[:]["v"].tolist() == [[0, 10, 20], [1, 11, 21]]
    assert lanes["v"].tolist() == lanes[:]["v"].tolist()
    assert lanes[1:]["v"].tolist() == [[10, 20], [11, 21]]
    assert lanes.read_all_in_order(2)["v"].tolist() == [[0, 10], [1, 11]]
    assert lanes[1]["v"].tolist() == [10, 11], "one slot: all lanes at one time"


def test_coordinates_are_those_that_extend_gave(lanes: TensorDictReplayBuffer) -> None:
    sample = lanes.sample(20)
    assert (sample["index"] @ torch.tensor([10, 1])).tolist() == sample["v"].tolist()
    assert lanes[sample["index"]]["v"].tolist() == sample["v"].tolist()
    lanes[torch.tensor([[2, 1], [0, 0]])] = TensorDict({"v": torch.tensor([-1, -2])}, [2])
    assert lanes[:]["v"].tolist() == [[-2, 10, 20], [1, 11, -1]]


def test_whole_batches_are_overwritten_as_they_are_read(lanes: TensorDictReplayBuffer) -> None:
    data = lanes[:]
    data["v"] += 100
    data["w"] = data["v"].float()
    lanes.write_all(data)
    assert bool((lanes[:] == data).all())
    lanes[1:] = lanes[1:]
    lanes.update_(data)
    lanes.set_("v", data["v"])
    assert bool((lanes[:] == data).all())
    lanes.write_all(data[:, :1] * 0, end=1)
    assert lanes[:]["v"].tolist() == [[0, 110, 120], [0, 111, 121]]
    with pytest.raises(LayoutError):
        lanes.write_all(data[:1])


def test_one_step_of_every_lane_is_added(lanes: TensorDictReplayBuffer) -> None:
    assert lanes.add(TensorDict({"v": torch.tensor([30, 31])}, [2])).tolist() == [[3, 0], [3, 1]]
    assert lanes[:]["v"].tolist() == [[0, 10, 20, 30], [1, 11, 21, 31]]
